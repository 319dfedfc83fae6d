"""The rows of `make bench` as data."""

from __future__ import annotations

import pytest

from bench.rows import ROWS, NoSuchRow, chosen, scaled
from bench.work import BACKLOG, BOTH, Case


def test_names_of_rows_and_lines_are_unique_and_so_are_the_queues() -> None:
    names = [row.name for row in ROWS]
    lines = [name for row in ROWS for name, _ in row.lines.values()]
    queues = [queue for row in ROWS for queue in row.queues]
    for each in (names, lines, queues):
        assert len(set(each)) == len(each)


def test_the_rows_are_the_work_that_the_comparison_is_about() -> None:
    shapes = {
        name: (row.size, row.window, row.connections, row.links)
        for row in ROWS
        for name, _ in row.lines.values()
    }
    assert shapes == {
        "w500": (1_024, 500, 1, 1),
        "c4": (1_024, 125, 4, 1),
        "w1x20": (1_024, 1, 20, 1),
        "w1x1": (1_024, 1, 1, 1),
        "send": (1_024, 500, 1, 1),
        "drain": (1_024, 500, 1, 1),
        "q100": (1_024, 5, 1, 100),
        "q1000": (1_024, 1, 10, 100),
        "64k": (65_536, 50, 1, 1),
        "c500": (1_024, 1, 500, 1),
    }


def test_a_row_of_many_links_has_a_queue_for_each_of_them() -> None:
    case = Case("many", "", 100, 1, connections=2, links=3)
    assert case.queues == [f"many-{number}" for number in range(6)]
    assert case.queue == "many-#"
    assert (Case("one", "", 1, 1).queues, Case("one", "", 1, 1).queue) == (["one"], "one")


def test_a_backlog_gives_two_lines_and_other_work_one() -> None:
    one = Case("a", "both ways", 1, 1, modes=BOTH)
    two = Case("b", "backlog", 1, 1, modes=BACKLOG)
    assert one.lines == {"both": ("a", "both ways")}
    assert two.lines == {
        "send": ("send", "backlog: send"),
        "receive": ("drain", "backlog: drain"),
    }


def test_rows_are_chosen_by_their_names_or_by_those_of_their_lines() -> None:
    assert [row.name for row in chosen("", 1)] == [row.name for row in ROWS]
    assert [row.name for row in chosen("drain, w500", 1)] == ["w500", "backlog"]
    with pytest.raises(NoSuchRow, match=r"no row is called w400: w500, c4"):
        chosen("w500,w400", 1)


def test_a_scaled_row_leaves_work_for_each_of_its_links() -> None:
    case = Case("many", "", 10_000, 1, connections=10, links=10)
    assert scaled(case, 0.5).count == 5_000
    assert scaled(case, 0.001).count == 200
