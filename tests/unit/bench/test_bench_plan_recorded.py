"""Plans beside the recorded runs of docs/results: the table of docs/planning.md."""

from functools import cache

import pytest

import plan_recorded
from plan_figures import FIGURES, Figure, planned
from plan_recorded import RESULTS, RUNS, TOLERANCE, Run, table

compare = cache(plan_recorded.compare)
"""A plan takes about a second."""

FAR = {
    "135M, stream",
    "135M, distillation from 1.5B",
    "135M, distillation, longer answers",
    "1.5B, stream, LoRA, coder and tester",
}
"""Runs whose steps the plan does not describe; docs/planning.md says so."""


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_memory_and_steps_of_recorded_runs_are_planned_within_the_tolerance(run: Run) -> None:
    found = compare(run)
    memory, step = found.ratio("memory"), found.ratio("step")
    assert memory == pytest.approx(1, abs=0.05)
    assert (step is not None) is run.alone
    if step is not None and run.name not in FAR:
        assert step == pytest.approx(1, abs=TOLERANCE)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{figure.model} {figure.part} {figure.name}")
def test_published_figures_are_planned_within_the_tolerance(figure: Figure) -> None:
    assert planned(figure) == pytest.approx(figure.seconds, rel=TOLERANCE)


def test_steps_without_a_gradient_and_before_the_first_do_not_count() -> None:
    (run,) = [each for each in RUNS if each.name == "135M, overlap, no examples"]
    steps = run.steps()
    assert min(each["step"] for each in steps) >= run.first
    assert all("actor/loss" in each for each in steps)


def test_stages_are_compared_only_where_they_take_turns() -> None:
    by_name = {each.name: each for each in RUNS}
    alone, overlapped, beside = (compare(by_name[f"135M, {name}"]) for name in ("sync", "overlap", "sync, GRPO"))
    assert alone.ratio("update") is not None
    assert overlapped.ratio("update") is None
    assert overlapped.ratio("step") is not None
    assert beside.ratio("step") is None


def test_the_table_has_a_row_for_each_run_and_marks_those_that_are_off() -> None:
    lines = list(table([compare(each) for each in RUNS]))
    rows = [line for line in lines if line.startswith(("| 135M", "| 1.5B"))]
    assert len(rows) == len(RUNS)
    assert all("**" in row for row in rows if row.split("|")[1].strip() in FAR)
    assert lines[-1].startswith("Step and memory are within 15% in 5 of 9 runs")


def test_the_docs_have_the_table() -> None:
    said = (RESULTS.parent / "planning.md").read_text()
    missing = [line for line in table([compare(each) for each in RUNS]) if line not in said]
    assert not missing, "run `python bench/plan.py --recorded` and copy its tables to docs/planning.md"
