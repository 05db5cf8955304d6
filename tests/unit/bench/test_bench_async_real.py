"""The benchmark of asynchronous training with real parts."""

from dataclasses import replace

import pytest

from async_real import Setting, Timed, held_back, measure, middle

SYNC = Timed(2.0, 1.2, 0.7, {"trainer": 0.6, "engine": 0.35}, 100.0, 0.0, 0.03, 0.01)


def test_modes_sample_the_same_number_of_tokens() -> None:
    setting = Setting("dojang-tiny", 3, 6, 12, 0.001, prompts_per_step=2, group_size=2)
    sync, overlap, stream = (measure(setting, mode) for mode in ("sync", "overlap", "stream"))
    assert sync.tokens == pytest.approx(overlap.tokens)
    assert sync.tokens == pytest.approx(stream.tokens)
    assert (sync.staleness, overlap.staleness, stream.staleness) == (0, 1, 1)


def test_the_bound_is_that_of_the_plan() -> None:
    assert SYNC.gain == pytest.approx(2.0 / 1.2)


def test_it_says_what_held_a_mode_back() -> None:
    assert held_back(SYNC, replace(SYNC, idle={"trainer": 0.0, "engine": 0.0})) == "nothing"
    slower = Timed(1.5, 1.5, 0.7, {"trainer": 0.5, "engine": 0.0}, 100.0, 1.0, 0.03, 0.01)
    assert held_back(SYNC, slower) == (
        "the trainer waited for rollouts 50% of the time; rollouts took 1.25x as long beside the other stage"
    )


def test_the_median_round_counts() -> None:
    assert middle([replace(SYNC, step_s=each) for each in (3.0, 1.0, 2.0)]).step_s == 2.0
