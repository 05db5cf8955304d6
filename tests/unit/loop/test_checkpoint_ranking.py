"""Which checkpoints are the best, from what is on disk."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.loop.checkpoint_ranking import CheckpointRanking
from dojang.loop.config import CheckpointConfig, HealthConfig
from dojang.loop.health_check import HealthCheck
from dojang.loop.run_state import State, load_figures, load_state, write_state
from dojang.types import Metrics, Problem

SCORE, HELD_OUT, REWARD = "val/accuracy", "val/reward", "critic/rewards/mean"


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def save(directory: RunDir, step: int, figures: Metrics) -> State:
    state = State(step=step, figures=figures)
    with directory.new_checkpoint(step) as path:
        write_state(path, state, HealthCheck(HealthConfig()))
    return state


def record(directory: RunDir, *lines: Metrics) -> None:
    with directory.metrics.open("a") as file:
        file.writelines(json.dumps({"step": 1, **line}) + "\n" for line in lines)


def no_problem(prompt_index: int) -> Problem:
    raise AssertionError


# Ranking


@pytest.mark.parametrize(("mode", "expected"), [("max", [2, 3, 1, 0]), ("min", [0, 3, 1, 2])])
def test_the_best_come_first_and_ties_go_to_the_later_step(directory: RunDir, mode: str, expected: list[int]) -> None:
    for step, value in enumerate([0.1, 0.5, 0.9, 0.5]):
        save(directory, step, {SCORE: value})
    for count in (1, 2, 3, 4):
        assert CheckpointRanking(SCORE, mode, count).best_steps(directory) == expected[:count]
    assert CheckpointRanking(SCORE, mode, 9).best_steps(directory) == expected


@pytest.mark.parametrize("mode", ["max", "min"])
def test_ties_go_to_the_higher_held_out_reward_before_the_later_step(directory: RunDir, mode: str) -> None:
    for step, reward in enumerate([-0.5, 0.25, 0.25, -1.0, math.nan]):
        save(directory, step, {SCORE: 0.5, HELD_OUT: reward})
    assert CheckpointRanking(SCORE, mode, 9).best_steps(directory) == [2, 1, 0, 3, 4]
    tied = State(step=5, figures={SCORE: 0.5, HELD_OUT: 0.0})
    assert not CheckpointRanking(SCORE, mode, 2).is_among_best(tied, directory)
    assert CheckpointRanking(SCORE, mode, 3).is_among_best(tied, directory)
    assert CheckpointRanking(SCORE, mode, 1).is_among_best(
        replace(tied, figures={SCORE: 0.5, HELD_OUT: 0.25}), directory
    )


def test_ties_of_one_data_source_go_to_its_own_reward(directory: RunDir) -> None:
    save(directory, 1, {"val/accuracy/a": 0.5, "val/test_score/a": 1.0, HELD_OUT: -1.0})
    save(directory, 2, {"val/accuracy/a": 0.5, "val/test_score/a": 0.0, HELD_OUT: 1.0})
    assert CheckpointRanking("val/accuracy/a", count=2).best_steps(directory) == [1, 2]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_has_no_value_is_no_candidate(directory: RunDir, value: float | None) -> None:
    save(directory, 1, {} if value is None else {SCORE: value})
    assert CheckpointRanking(count=3).best_steps(directory) == []
    save(directory, 2, {SCORE: 0.0})
    assert CheckpointRanking(count=3).best_steps(directory) == [2]


def test_any_figure_of_the_step_can_be_asked_for(directory: RunDir) -> None:
    save(directory, 1, {SCORE: 0.1, REWARD: np.float32(0.5)})
    save(directory, 2, {REWARD: 0.25})
    assert CheckpointRanking(SCORE, count=2).best_steps(directory) == [1]
    assert CheckpointRanking(REWARD, count=2).best_steps(directory) == [1, 2]
    assert CheckpointRanking(REWARD, "min", 2).best_steps(directory) == [2, 1]


def test_what_cannot_be_read_is_no_candidate(directory: RunDir) -> None:
    for step in (1, 2, 3, 4):
        save(directory, step, {SCORE: step / 10})
    (directory.checkpoints / "step-000004" / "state.json").unlink()
    (directory.checkpoints / "step-000003" / "state.json").write_text('{"step": 3, "sco')
    (directory.checkpoints / "step-000002" / "state.json").write_text("[]")
    (directory.checkpoints / "step-000009-mine").mkdir()
    assert CheckpointRanking(count=9).best_steps(directory) == [1]


# Saving at once


def test_an_evaluation_among_the_best_is_saved_at_once(directory: RunDir) -> None:
    ranking = CheckpointRanking(count=2)
    for step, score in ((1, 0.5), (2, 0.25)):
        state = State(step=step, figures={SCORE: score})
        assert ranking.is_among_best(state, directory)  # there is room
        save(directory, step, state.figures)
    late = State(step=3)
    assert not ranking.is_among_best(late, directory)  # it was not evaluated
    assert not ranking.is_among_best(replace(late, figures={SCORE: 0.24}), directory)
    assert ranking.is_among_best(replace(late, figures={SCORE: 0.25}), directory)  # ties go to the later step
    assert ranking.is_among_best(replace(late, figures={SCORE: 0.26}), directory)
    assert CheckpointRanking(count=1).is_among_best(replace(late, figures={SCORE: 0.5}), directory)
    assert not CheckpointRanking(count=1).is_among_best(replace(late, figures={SCORE: 0.4}), directory)
    assert CheckpointRanking(mode="min", count=1).is_among_best(replace(late, figures={SCORE: 0.2}), directory)
    assert not CheckpointRanking(mode="min", count=1).is_among_best(replace(late, figures={SCORE: 0.3}), directory)


def test_a_reward_that_rises_is_no_reason_to_save(directory: RunDir) -> None:
    assert not CheckpointRanking(REWARD).is_among_best(State(step=1, figures={REWARD: 1.0}), directory)


# A metric that is not there


def test_an_unknown_figure_of_evaluations_is_known_after_the_first_one(directory: RunDir) -> None:
    ranking = CheckpointRanking("val/acuracy")
    step, evaluation = {REWARD: 1.0}, {SCORE: 1.0, "timing_s/eval": 3.0}
    record(directory, step)
    ranking.check(step, directory)  # an evaluation may still have it
    record(directory, evaluation)
    words = (
        r"checkpoint\.metric=val/acuracy is no metric of this run.* Did you mean val/accuracy\? "
        r"This run reports: critic/rewards/mean, timing_s/eval, val/accuracy$"
    )
    with pytest.raises(ConfigError, match=words):
        ranking.check(evaluation, directory)


def test_an_unknown_figure_of_training_is_known_after_the_first_step(directory: RunDir) -> None:
    ranking = CheckpointRanking("loss")
    evaluation, step = {SCORE: 1.0}, {REWARD: 1.0}
    record(directory, evaluation)
    ranking.check(evaluation, directory)
    record(directory, step)
    with pytest.raises(
        ConfigError, match=r"loss is no metric of this run, .* This run reports: critic/rewards/mean, val/accuracy$"
    ):
        ranking.check(step, directory)


def test_a_figure_that_one_step_lacks_is_no_mistake(directory: RunDir) -> None:
    record(directory, {"actor/loss": 1.0}, {REWARD: 1.0})
    CheckpointRanking("actor/loss").check({REWARD: 1.0}, directory)
    CheckpointRanking("judge/outcome/wrong").check({REWARD: 1.0}, directory)  # nothing was wrong yet
    with pytest.raises(ConfigError, match="judge/outcome/wrongg is no metric"):
        CheckpointRanking("judge/outcome/wrongg").check({REWARD: 1.0}, directory)


# On disk


def test_the_figures_of_a_step_come_back(directory: RunDir) -> None:
    save(directory, 4, {SCORE: 0.5, "perf/tokens_per_s": 12.0})
    path = directory.checkpoints / "step-000004"
    state = load_state(path, HealthCheck(HealthConfig()), no_problem)
    assert state.figures == load_figures(path) == {SCORE: 0.5, "perf/tokens_per_s": 12.0}


@pytest.mark.parametrize(("step", "figures"), [(4, {SCORE: 0.5}), (5, {})])
def test_a_checkpoint_without_figures_has_its_score(directory: RunDir, step: int, figures: Metrics) -> None:
    """That is what they were before there was a choice."""
    path = directory.checkpoints / f"step-{step:06d}"
    path.mkdir(parents=True)
    saved = {"step": step, "prompt_index": 8, "scores": {"0": 0.25, "4": 0.5}, "seconds": 1.5, "health": []}
    (path / "state.json").write_text(json.dumps(saved))
    assert load_figures(path) == figures
    state = load_state(path, HealthCheck(HealthConfig()), no_problem)
    assert (state.figures, state.scores, state.prompt_index) == (figures, {0: 0.25, 4: 0.5}, 8)
    assert CheckpointRanking().best_steps(directory) == ([4] if figures else [])


def test_the_former_name_of_accuracy_is_refused_with_the_new_one() -> None:
    with pytest.raises(ValidationError, match="val/score was renamed to val/accuracy"):
        CheckpointConfig(metric="val/score")
