"""Games of TextArena, played in child processes with another interpreter."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from trained import episodes_of_a_step
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.data.episodes import EpisodesConfig
from dojang.environments.base import Messages, Reply, Step, StepResult
from dojang.environments.remote_process import RemoteEnvironment, _shared_pool, process_pool
from dojang.environments.textarena import TextArenaConfig
from dojang.types import Message, Outcome, Problem
from scripted_episodes import LastWordTask, play

HANOI = ["[A C]", "[A B]", "[C B]", "[A C]", "[B A]", "[B C]", "[A C]"]
EPISODES = EpisodesConfig(train_size=8, test_size=4)


@pytest.fixture(scope="module")
def section(python: str) -> Iterator[Callable[..., TextArenaConfig]]:
    made: set[str] = set()

    def make(game: str, **settings: object) -> TextArenaConfig:
        found = TextArenaConfig.model_validate({"game": game, "python": python, "processes": 1, **settings})
        made.add(python)
        return found

    yield make
    from dojang.environments.textarena import _ADAPTER

    process_pool(python, _ADAPTER, 1).close()
    _shared_pool.cache_clear()


def text_of(messages: Messages) -> str:
    assert isinstance(messages, list)
    return "\n".join(each.content for each in messages if isinstance(each, Message))


def begin(section: TextArenaConfig, problem: Problem) -> tuple[RemoteEnvironment, str]:
    environment = section.environment()
    assert isinstance(environment, RemoteEnvironment)
    return environment, text_of(environment.reset(problem))


def moved(environment: RemoteEnvironment, move: str) -> Step:
    found: StepResult = environment.step(Reply(move, 0, 9))  # type: ignore[assignment]
    assert isinstance(found, Step)
    return found


def test_a_solved_game_is_rewarded(tokenizer: PreTrainedTokenizerBase, section: Callable[..., TextArenaConfig]) -> None:
    chosen = section("TowerOfHanoi-v0")
    (problem, *_) = EPISODES.read("train")
    chosen.check_problems(LastWordTask(), [problem])
    sample = play(tokenizer, chosen, HANOI, problem=problem)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)
    assert "solved" in sample.verdict.detail
    assert "You moved disk 1 from A to C" in sample.text
    unsolved = play(tokenizer, section("TowerOfHanoi-v0", max_turns=2), HANOI, problem=problem)
    assert (unsolved.verdict.outcome, unsolved.verdict.reward) == (Outcome.WRONG, 0.0)


@pytest.mark.parametrize(
    ("game", "move"),
    [
        ("FrozenLake-v0", "down"),
        ("Sudoku-v0-easy", "[1 1 1]"),
        ("Mastermind-v0", "<think>[6 5 4 3]?</think>[1 2 3 4]"),
        ("Minesweeper-v0-small", "[2 2]"),
    ],
)
def test_the_seed_selects_the_instance_and_the_luck(
    section: Callable[..., TextArenaConfig], game: str, move: str
) -> None:
    train = EPISODES.read("train")
    chosen, seen = section(game), []
    for problem in (train[0], train[0], *train[1:]):
        environment, first = begin(chosen, problem)
        step = moved(environment, move)
        seen.append((first, text_of(step.messages) if step.messages else step.detail))
        environment.close()
    assert seen[0] == seen[1]
    assert len(set(seen)) > 2


def test_held_out_instances_are_others(section: Callable[..., TextArenaConfig]) -> None:
    chosen = section("FrozenLake-v0", settings={"size": 3, "num_holes": 1})  # few instances
    seen = {}
    for split in ("train", "test"):
        boards = set()
        for problem in EpisodesConfig(train_size=40, test_size=40).read(split):
            environment, first = begin(chosen, problem)
            boards.add(re.sub(r"\s", "", first))
            environment.close()
        seen[split] = boards
    assert seen["train"]
    assert seen["test"]
    assert not seen["train"] & seen["test"]


def test_games_side_by_side_do_not_change_each_other(section: Callable[..., TextArenaConfig]) -> None:
    chosen, (first, second, *_) = section("Minesweeper-v0-small"), EPISODES.read("train")
    alone, _ = begin(chosen, first)
    expected = text_of(moved(alone, "[2 2]").messages)
    one, _ = begin(chosen, first)
    other, _ = begin(chosen, second)
    moved(other, "[0 0]")
    assert text_of(moved(one, "[2 2]").messages) == expected
    for each in (alone, one, other):
        each.close()


def test_what_cannot_be_played_is_refused(section: Callable[..., TextArenaConfig], problem: Problem) -> None:
    (episode, *_) = EPISODES.read("train")
    with pytest.raises(ConfigError, match=r"known: .*FrozenLake-v0"):
        section("Nothing-v0").check_problems(LastWordTask(), [episode])
    with pytest.raises(ConfigError, match=r"data\.name=episodes"):
        section("FrozenLake-v0").check_problems(LastWordTask(), [problem])
    with pytest.raises(ConfigError, match="install it into a virtual"):
        TextArenaConfig().check_problems(LastWordTask(), [episode])


def test_a_model_is_trained(python: str, tmp_path: Path) -> None:
    workflow = {"name": "textarena", "game": "Mastermind-v0", "python": python}
    played = {"data": {"name": "episodes"}, "task": {"name": "environment"}}
    rows = episodes_of_a_step(tmp_path / "run", workflow, **played)
    assert all("mastermind" in row["prompt"].lower() for row in rows)
