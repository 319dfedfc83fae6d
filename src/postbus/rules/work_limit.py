"""How much work the rules of a topic may do for a message.

Work is counted in steps. A step is about a third of a microsecond: a test of a filter, a few
hundred characters that are searched or put together. No clock is asked, so the same rules come to
the same end for the same message everywhere, in a replay and in a test.
"""

from typing import Final

from postbus.rules.values import EvaluationFailed

STEPS_MAX: Final = 80_000
"""For a message: some 25 ms. Two thousand filters with ten tests each have room in it, and the
largest properties that a message can have."""
STEPS_OF_A_PROPERTY: Final = 4
"""Steps to read a property and look up the filters that ask for it."""


class TooMuchWork(EvaluationFailed):
    """The rules would take too long for this message. The others wait meanwhile."""


class Work:
    """The steps that are left for a message."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = STEPS_MAX

    @property
    def spent(self) -> int:
        return STEPS_MAX - self.left

    def spend(self, steps: int) -> None:
        """Take steps; raises TooMuchWork if too few are left."""
        self.left -= steps
        if self.left < 0:
            raise TooMuchWork(
                f"The rules of the topic take more than {STEPS_MAX} steps for this message."
            )
