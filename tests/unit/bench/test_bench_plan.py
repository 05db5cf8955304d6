"""The benchmark of plans puts predictions beside what it has measured."""

import pytest

from dojang.planning.instances import INSTANCES, Instance
from plan import CPU, GPU, TINY, beside, play

HERE = Instance("here", 2, 24.0, cpu_gflops=50.0)
MEASURED = {"seconds": 2.0, "first": 3.0, "clock": 2.0, "bytes": 2.0**30, "reserved": 2.0**30, "loaded": 2.0**28}


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.part)
def test_a_case_is_played_and_predicted(case: object) -> None:
    found = play(case)  # type: ignore[arg-type]
    assert found["seconds"] > 0
    rows = list(beside(case, found, HERE))  # type: ignore[arg-type]
    assert {row.unit for row in rows} >= {"s", "MiB"}
    assert all(row.value > 0 and row.ratio == pytest.approx(row.value / row.baseline_value) for row in rows)


@pytest.mark.parametrize(("cases", "machine"), [(GPU, INSTANCES["h200"]), (CPU, HERE)])
def test_all_cases_can_be_predicted(cases: list[object], machine: Instance) -> None:
    for case in cases:
        rows = list(beside(case, MEASURED, machine))  # type: ignore[arg-type]
        assert all(row.value > 0 for row in rows)
        assert len({row.case for row in rows}) == len(rows)
