import pytest

from dojang.loop.prompt_sampler import draw_prompts, problem_at
from dojang.types import Message, Problem

PROBLEMS = [Problem(f"p/{place}", "p", (Message("user", str(place)),), str(place)) for place in range(10)]


def places(first: int, count: int, seed: int = 0) -> list[int]:
    return [int(problem.messages[0].content) for _, problem in draw_prompts(PROBLEMS, seed, first, count)]


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_each_pass_poses_every_problem_once(epoch: int) -> None:
    assert sorted(places(10 * epoch, 10)) == list(range(10))


def test_passes_differ() -> None:
    assert len({tuple(places(10 * epoch, 10)) for epoch in range(20)}) == 20


def test_the_order_depends_on_the_seed() -> None:
    assert len({tuple(places(0, 10, seed)) for seed in range(20)}) == 20


def test_the_order_is_pinned() -> None:
    # Changing this changes which problems every recorded run would see.
    assert places(0, 10) == [5, 3, 7, 8, 2, 4, 1, 0, 6, 9]
    assert places(10, 10) == [3, 5, 2, 7, 4, 6, 8, 9, 1, 0]
    assert places(0, 10, seed=1) == [0, 6, 5, 3, 4, 9, 7, 8, 2, 1]


@pytest.mark.parametrize("size", [1, 3, 4, 7, 10, 13, 30])
def test_the_order_does_not_depend_on_how_many_are_posed_at_a_time(size: int) -> None:
    in_steps = [place for first in range(0, 60, size) for place in places(first, size)]
    assert in_steps[:60] == places(0, 60)


def test_prompt_indices_count_on_over_the_end_of_a_pass() -> None:
    assert [prompt_index for prompt_index, _ in draw_prompts(PROBLEMS, 0, 8, 5)] == [8, 9, 10, 11, 12]
    assert places(8, 5) == places(0, 20)[8:13]
    assert [problem_at(PROBLEMS, 0, index) for index in range(8, 13)] == [
        problem for _, problem in draw_prompts(PROBLEMS, 0, 8, 5)
    ]


def test_more_than_two_passes_in_one_step() -> None:
    assert places(0, 35) == places(0, 10) + places(10, 10) + places(20, 10) + places(30, 5)


def test_a_single_problem_is_posed_again_and_again() -> None:
    assert [problem.id for _, problem in draw_prompts(PROBLEMS[:1], 0, 3, 3)] == ["p/0"] * 3
