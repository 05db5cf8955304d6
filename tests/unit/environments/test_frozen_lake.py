"""FrozenLake: solvable maps by seed, held-out ones apart, moves and endings."""

from dataclasses import replace
from typing import Literal

import pytest
from pydantic import ValidationError

from dojang.config import recipe
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.data.episodes import EpisodesConfig
from dojang.environments.base import Reply, Step
from dojang.environments.frozen_lake import FrozenLake, FrozenLakeConfig
from dojang.environments.lake_maps import LakeMap, make_map, shortest_path
from dojang.types import Problem

LAKE = LakeMap(3, (0, 0), (2, 2), frozenset({(1, 0), (1, 1)}))


def test_a_map_is_drawn_with_player_goal_and_holes() -> None:
    assert LAKE.text((0, 1)) == ".P.\nHH.\n..G"


def test_the_shortest_way_goes_around_holes() -> None:
    assert shortest_path(LAKE, (0, 0)) == ["right", "right", "down", "down"]
    walled = LakeMap(3, (0, 0), (2, 2), frozenset({(0, 1), (1, 0)}))
    assert shortest_path(walled, (0, 0)) is None


@pytest.mark.parametrize("held_out", [True, False])
def test_every_seed_has_a_map_that_can_be_solved(held_out: bool) -> None:
    for seed in range(20):
        lake = make_map(seed, size=4, holes=3, distance=4, held_out=held_out)
        assert lake == make_map(seed, size=4, holes=3, distance=4, held_out=held_out)
        way = shortest_path(lake, lake.start)
        assert way is not None
        assert 1 <= len(way) <= 4
        assert len(lake.holes) == 3


def test_held_out_maps_are_never_trained_on() -> None:
    """Neither from the same start nor from another: no held-out position is seen on a training map."""
    lakes = [
        {replace(make_map(seed, size=3, holes=1, distance=4, held_out=held_out), start=(0, 0)) for seed in range(60)}
        for held_out in (True, False)
    ]
    assert min(map(len, lakes)) > 3
    assert not lakes[0] & lakes[1]


def test_the_recipe_is_evaluated_on_unseen_maps() -> None:
    config = recipe.load("quickstart-frozen-lake", [])
    seen, unseen = [maps_of(config, "train"), maps_of(config, "test")]
    assert len(seen) > 3000
    assert len(unseen) >= 200, "different maps"
    assert not {replace(lake, start=(0, 0)) for lake in seen} & {replace(lake, start=(0, 0)) for lake in unseen}


def maps_of(config: RunConfig, split: Literal["train", "test"]) -> set[LakeMap]:
    """Different maps of the episodes of a split, as the environment makes them."""
    assert isinstance(config.workflow, FrozenLakeConfig)
    found = set()
    for problem in config.data.load(split):
        environment = config.workflow.environment()
        assert isinstance(environment, FrozenLake)
        environment.reset(problem)
        found.add(environment._lake)
    return found


def play(moves: list[str]) -> list[object]:
    environment = FrozenLake()
    problem = EpisodesConfig().load("train")[0]
    environment.reset(problem)
    environment._lake, environment._place = LAKE, LAKE.start
    return [environment.step(Reply(move, turn, 9)) for turn, move in enumerate(moves)]


def test_the_goal_pays() -> None:
    *between, last = play(["right", "I go RIGHT.", "down", "down"])
    assert between == [".P.\nHH.\n..G", "..P\nHH.\n..G", "...\nHHP\n..G"]
    assert last == Step(reward=1.0, done=True, detail="reached the goal")


def test_a_hole_ends_the_walk_without_a_reward() -> None:
    assert play(["down"]) == [Step(reward=0.0, done=True, detail="fell into a hole")]


def test_the_edge_and_other_words_change_nothing() -> None:
    assert play(["up", "jump"]) == ["P..\nHH.\n..G", "Reply with up, down, left, right.\nP..\nHH.\n..G"]


def test_data_without_seeds_are_refused() -> None:
    problems = [Problem("gsm8k/0", "gsm8k", (), "seven")]
    with pytest.raises(ConfigError, match=r"gsm8k/0 is none; set data.name=episodes"):
        FrozenLakeConfig().check_problems(None, problems)  # type: ignore[arg-type]


def test_too_many_holes_are_refused() -> None:
    with pytest.raises(ValidationError, match="leave too little ice"):
        FrozenLakeConfig(size=3, holes=5)
