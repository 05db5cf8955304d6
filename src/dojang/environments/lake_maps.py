"""Maps of FrozenLake: generated from a seed, always solvable, held-out ones different from all training ones."""

import itertools
from collections import deque
from dataclasses import dataclass

from dojang.data.section import number_of

__all__ = ["MOVES", "LakeMap", "is_held_out", "make_map", "shortest_path"]

Cell = tuple[int, int]
MOVES: dict[str, Cell] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


@dataclass(frozen=True, slots=True)
class LakeMap:
    """A square lake: row and column of the start, the goal and the holes."""

    size: int
    start: Cell
    goal: Cell
    holes: frozenset[Cell]

    def move(self, place: Cell, move: str) -> Cell:
        """Cell after a move; the same at the edge."""
        row, column = place[0] + MOVES[move][0], place[1] + MOVES[move][1]
        return (row, column) if 0 <= row < self.size and 0 <= column < self.size else place

    def text(self, place: Cell) -> str:
        """Rows of the map: P the player, G the goal, H a hole, . ice."""
        marks = {**dict.fromkeys(self.holes, "H"), self.goal: "G", place: "P"}
        rows = range(self.size)
        return "\n".join("".join(marks.get((row, column), ".") for column in rows) for row in rows)


def make_map(seed: int, *, size: int, holes: int, distance: int, held_out: bool) -> LakeMap:
    """Returns the map of a seed, with the goal at most `distance` moves away."""
    for draw in itertools.count():
        cells = list(itertools.product(range(size), range(size)))
        order = sorted(cells, key=lambda cell: number_of(f"{seed} {draw} {cell}"))
        start, goal, *rest = order
        found = LakeMap(size, start, goal, frozenset(rest[:holes]))
        if is_held_out(found) != held_out:
            continue
        path = shortest_path(found, start)
        if path is not None and len(path) <= distance:
            return found
    raise AssertionError("there are maps of every size")


def is_held_out(lake: LakeMap) -> bool:
    """Whether a map is held out. The goal and the holes decide, not the start: no position on a held-out map is seen in
    training, from any start."""
    return number_of(lake.text(place=(-1, -1))) % 8 == 0


def shortest_path(lake: LakeMap, place: Cell) -> list[str] | None:
    """Moves of a shortest way to the goal around the holes; None if there is none."""
    queue, ways = deque([place]), {place: list[str]()}
    while queue:
        here = queue.popleft()
        if here == lake.goal:
            return ways[here]
        for move in MOVES:
            there = lake.move(here, move)
            if there not in ways and there not in lake.holes:
                ways[there] = [*ways[here], move]
                queue.append(there)
    return None
