"""The loop with stand-ins, on a virtual clock: the times are exact, and do not depend on the machine."""

import pytest

from async_stand_ins import CASES, Case, Measured, measure
from virtual_clock import run_virtually

STEPS = 24


def run(monkeypatch: pytest.MonkeyPatch, case: Case, mode: str) -> Measured:
    found = run_virtually(monkeypatch, measure(case, mode, STEPS))
    assert found.samples == 2 * STEPS * case.prompts_per_step
    assert found.staleness == (0 if mode == "sync" else case.lag)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_overlap_takes_as_long_as_the_longer_stage(monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    sync, overlap = run(monkeypatch, case, "sync"), run(monkeypatch, case, "overlap")
    assert sync.step_s == pytest.approx(sync.rollout_s + sync.update_s)
    if not case.geometric:
        # The first rollout has no update beside it, and the last update no rollout.
        other = min(overlap.rollout_s, overlap.update_s)
        assert overlap.step_s == pytest.approx(overlap.longest_s + other / STEPS)
    assert overlap.step_s <= 1.15 * overlap.longest_s
    assert (overlap.idle["trainer"] > 0.05) == (overlap.rollout_s > 1.01 * overlap.update_s)


def test_overlap_is_nearly_twice_as_fast_if_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    sync, overlap = (run(monkeypatch, CASES[0], mode) for mode in ("sync", "overlap"))
    assert sync.step_s >= 1.8 * overlap.step_s
    assert sync.idle == pytest.approx({"trainer": 0.5, "engine": 0.5})
    assert overlap.idle == pytest.approx({"trainer": 0.0, "engine": 0.0}, abs=1e-9)


def test_streaming_does_not_wait_for_the_longest_group(monkeypatch: pytest.MonkeyPatch) -> None:
    overlap, stream = (run(monkeypatch, CASES[-1], mode) for mode in ("overlap", "stream"))
    assert stream.step_s < 0.9 * overlap.step_s


def test_the_engine_is_idle_while_a_stream_waits_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update takes twice as long as the rollouts, which may not run further ahead."""
    found = run(monkeypatch, CASES[2], "stream")
    assert found.idle == pytest.approx({"trainer": 0.0, "engine": 0.5}, abs=0.05)
