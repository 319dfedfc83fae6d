"""Settings that every test shares."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from tests.support.small_limits import small

# Timing says nothing on a machine shared by several workers; a failure prints how to repeat it.
hypothesis.settings.register_profile("fresh", deadline=None, print_blob=True)
# The same examples every time: what a change is judged by does not depend on luck. Half as many as
# there are of fresh ones, for the same ones find nothing new.
hypothesis.settings.register_profile(
    "same", deadline=None, print_blob=True, derandomize=True, max_examples=50
)
hypothesis.settings.load_profile("fresh" if "POSTBUS_FRESH_EXAMPLES" in os.environ else "same")


@pytest.fixture
def small_limits() -> Iterator[None]:
    """For whatever is cut into pieces: a short test meets each limit many times."""
    with small():
        yield
