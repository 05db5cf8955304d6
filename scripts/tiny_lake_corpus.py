"""Pretraining corpus of dojang-tiny-lake: walks over frozen lakes, most of them by walkers who do not look.

    right                            most walkers: any move
    goal up right, hole up: right    few: the goal's direction, the holes beside them, then a step of a shortest way

A model that imitates the corpus mostly walks at random, so reinforcement learning has something to discover: walkers
who look arrive. A walker keeps their habit for the whole walk. The corpus excludes held-out maps. A change here changes
the shipped files: run `make_tiny_lake_model.py` again.
"""

from collections.abc import Iterator
from itertools import product
from random import Random

from dojang.environments.frozen_lake import RULES
from dojang.environments.lake_maps import MOVES, LakeMap, is_held_out, shortest_path
from dojang.types import Message
from tiny_corpus import Exercise

__all__ = ["LOOKERS", "draw", "look", "walk"]

SIZE, HOLES, DISTANCE = 4, 3, 6
LOOKERS = 0.15
MAX_TURNS = 8


def draw(rng: Random) -> Exercise:
    """The first turn of a walk, for the tokenizer."""
    question, response, *_ = walk(rng, LOOKERS)
    return Exercise(question.content, response.content)


def walk(rng: Random, lookers: float) -> list[Message]:
    """Returns the conversation of a whole walk. `lookers`: the share of walkers who look."""
    lake = _lake(rng)
    return list(_turns(lake, rng, looks=rng.random() < lookers))


def look(lake: LakeMap, place: tuple[int, int], rng: Random) -> str:
    """Returns the reply of a walker who looks: any first step of a shortest way."""
    ways = {move: shortest_path(lake, lake.move(place, move)) for move in MOVES if not _is_bad(lake, place, move)}
    lengths = {move: len(way) for move, way in ways.items() if way is not None}
    best = [move for move, length in lengths.items() if length == min(lengths.values())]
    (row, column), (goal_row, goal_column) = place, lake.goal
    vertical = "up" if goal_row < row else "down" if goal_row > row else ""
    horizontal = "left" if goal_column < column else "right" if goal_column > column else ""
    goal = " ".join(filter(None, [vertical, horizontal]))
    holes = "".join(f" {move}" for move in MOVES if lake.move(place, move) in lake.holes)
    return f"goal {goal}{', hole' + holes if holes else ''}: {rng.choice(best)}"


def _turns(lake: LakeMap, rng: Random, *, looks: bool) -> Iterator[Message]:
    place, rules = lake.start, RULES
    for _ in range(MAX_TURNS):
        reply = look(lake, place, rng) if looks else rng.choice(list(MOVES))
        yield Message("user", rules + lake.text(place))
        yield Message("assistant", reply)
        place, rules = lake.move(place, reply.rpartition(" ")[2]), ""
        if place == lake.goal or place in lake.holes:
            return


def _lake(rng: Random) -> LakeMap:
    cells = list(product(range(SIZE), range(SIZE)))
    while True:
        start, goal, *holes = rng.sample(cells, 2 + HOLES)
        lake = LakeMap(SIZE, start, goal, frozenset(holes))
        way = shortest_path(lake, start)
        if way is not None and len(way) <= DISTANCE and not is_held_out(lake):
            return lake


def _is_bad(lake: LakeMap, place: tuple[int, int], move: str) -> bool:
    return lake.move(place, move) in lake.holes or lake.move(place, move) == place
