"""What tasks state to builders and the planner."""

import typing

import pytest

from dojang.config.eval_config import Task
from dojang.data.gsm8k import Gsm8kConfig
from dojang.tasks.code import CodeConfig
from dojang.tasks.maths import MathsConfig
from dojang.tasks.section import TaskSection

TASKS = typing.get_args(typing.get_args(Task)[0])


@pytest.mark.parametrize("task", TASKS)
def test_every_task_states_its_needs(task: type[TaskSection]) -> None:
    assert issubclass(task, TaskSection)
    assert not (task.runs_programs and task.grades_on_nodes)  # the judge spreads programs by itself


def test_workers_are_set_only_where_a_task_has_them() -> None:
    assert MathsConfig().with_workers(3).workers == 3
    code = CodeConfig()
    assert code.with_workers(3) is code


def test_benchmarks_run_all_tests_with_their_own_limits() -> None:
    assert CodeConfig(max_tests=5, max_cpu_s=1.0).for_benchmark() == CodeConfig(max_tests=None)
    maths = MathsConfig()
    assert maths.for_benchmark() is maths


def test_evaluations_use_the_validation_split_where_there_is_one() -> None:
    assert Gsm8kConfig().held_out_split() == "test"
    assert Gsm8kConfig(validation=0.1).held_out_split() == "validation"
