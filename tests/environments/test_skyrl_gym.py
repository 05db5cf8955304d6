"""Environments of SkyRL-Gym, played in a process with another interpreter."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from trained import episodes_of_a_step
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.environments import skyrl_gym
from dojang.environments.remote_process import _shared_pool, process_pool
from dojang.environments.skyrl_gym import SkyRlGymConfig
from dojang.types import Message, Outcome, Problem
from scripted_episodes import LastWordTask, counts, play

QUESTION = Problem("gsm8k/1", "gsm8k", (Message("user", "What is 6 * 7? End with #### ANSWER."),), "42")


@pytest.fixture(scope="module")
def section(python: str) -> Iterator[Callable[..., SkyRlGymConfig]]:
    def make(**settings: object) -> SkyRlGymConfig:
        return SkyRlGymConfig.model_validate({"python": python, "processes": 1, **settings})

    yield make
    process_pool(python, skyrl_gym._ADAPTER, 1).close()
    _shared_pool.cache_clear()


def test_rewards_of_turns_are_those_of_the_environment(
    tokenizer: PreTrainedTokenizerBase, section: Callable[..., SkyRlGymConfig]
) -> None:
    chosen = section(max_turns=4)
    chosen.check_problems(LastWordTask(), [QUESTION])
    sample = play(tokenizer, chosen, ["no idea", "I guess\n#### 41", "#### 42"], problem=QUESTION)
    assert [turn.reward for turn in sample.turns if turn.role == "assistant"] == [0.0, 0.05, 1.0]
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, pytest.approx(1.05))
    assert "tentative numeric answer" in sample.text


def test_the_environment_ends_after_its_turns(
    tokenizer: PreTrainedTokenizerBase, section: Callable[..., SkyRlGymConfig]
) -> None:
    sample = play(tokenizer, section(max_turns=2), ["#### 1", "#### 2"], problem=QUESTION)
    assert counts(sample)["assistant"] == 2
    assert sample.verdict.outcome is Outcome.WRONG


def test_a_single_turn_is_an_episode(
    tokenizer: PreTrainedTokenizerBase, section: Callable[..., SkyRlGymConfig]
) -> None:
    for reference in ("42", 42):
        sample = play(tokenizer, section(env="gsm8k"), ["#### 42"], problem=replace(QUESTION, reference=reference))
        assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)


def test_an_unknown_environment_is_refused(section: Callable[..., SkyRlGymConfig]) -> None:
    with pytest.raises(ConfigError, match=r"known: .*gsm8k_multi_turn"):
        section(env="nothing").check_problems(LastWordTask(), [QUESTION])
    with pytest.raises(ConfigError, match=r"pip install skyrl-gym==0\.4\.0"):
        SkyRlGymConfig().check_problems(LastWordTask(), [QUESTION])
    with pytest.raises(ConfigError, match="gsm8k/1 is a object"):
        section().check_problems(LastWordTask(), [replace(QUESTION, reference=object())])


def test_a_model_is_trained(python: str, tmp_path: Path) -> None:
    rows = episodes_of_a_step(tmp_path / "run", {"name": "skyrl_gym", "python": python})
    assert any(len(row["turns"]) == 3 for row in rows)
