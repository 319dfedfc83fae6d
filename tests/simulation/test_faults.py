"""Each planted fault is found, within 200 seeds and by the right checker."""

from __future__ import annotations

import pytest

from tests.simulation.faults import Fault, find
from tests.simulation.planted import FAULTS

# The simulator makes constants small and puts itself between methods.
pytestmark = pytest.mark.interpreted_only


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        pytest.param(parts, fault, id=f"{parts[0]}: {fault.name}")
        for parts, faults in FAULTS.items()
        for fault in faults
    ],
)
def test_a_planted_fault_is_found(parts: tuple[str, ...], fault: Fault) -> None:
    found = find(fault, parts)
    assert found is not None, "200 seeds noticed nothing"
    _, violation = found
    assert violation.promise in fault.promises
    assert "seed" in violation.__notes__[0], "a failure says how to repeat it"
