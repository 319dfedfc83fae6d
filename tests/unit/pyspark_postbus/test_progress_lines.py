"""What a pipeline says of its progress where nobody watches a bar: a line now and then."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from pyspark_postbus.pipelines.console import RepairView, bars
from pyspark_postbus.pipelines.deadletters import Outcome
from pyspark_postbus.pipelines.progress_lines import lines

WITHIN_S = 10.0


class Log(io.StringIO):
    """A file that can be waited on."""

    def __init__(self) -> None:
        super().__init__()
        self._news = threading.Condition()

    def write(self, text: str) -> int:
        with self._news:
            self._news.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: text in self.getvalue(), WITHIN_S), self.getvalue()


def test_without_a_terminal_each_change_is_told_in_a_line_of_its_own() -> None:
    out = Log()
    console = Console(file=out, soft_wrap=True, highlight=False)
    with bars(console) as progress, lines(console, progress, every_s=0.01):
        view = RepairView(progress, "sent again", 1_000_000)
        out.wait_for("sent again: 0 of 1,000,000\n")
        outcome = Outcome(1_000_000)
        outcome.outcomes["moved"] = 500_000
        view.tell(outcome)
        out.wait_for("sent again: 500,000 of 1,000,000 (500,000 moved)\n")
    assert out.getvalue().count("500,000 of") == 1, "what has not changed is not told again"


def test_on_a_terminal_there_is_a_bar_and_no_lines() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160)
    with bars(console) as progress:
        view = RepairView(progress, "sent again", 2_000)
        outcome = Outcome(2_000)
        outcome.outcomes["moved"] = 1_000
        view.tell(outcome)
    assert "1000/2000" in out.getvalue()
    assert "1,000 of 2,000" not in out.getvalue()
