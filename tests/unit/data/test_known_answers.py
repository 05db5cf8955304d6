"""The answers that rows of published datasets tell, for audits."""

from typing import Any

import pytest

from dojang.data.code_contests import CodeContests
from dojang.data.deepcoder import Codeforces, DeepCoder
from dojang.data.deepmath import DeepMath
from dojang.data.humaneval import HumanEval
from dojang.data.livecodebench import LiveCodeBench
from dojang.data.math500 import Math500
from dojang.data.mbpp import Mbpp
from dojang.data.prepare_rows import KnownAnswers


@pytest.mark.parametrize(
    ("dataset", "row", "known"),
    [
        (HumanEval(), {"prompt": "def f():\n", "canonical_solution": "    return 1\n"}, ["def f():\n    return 1\n"]),
        (Mbpp(), {"code": "def f(): pass"}, ["def f(): pass"]),
        (Math500(), {"solution": "It is \\boxed{1}."}, ["It is \\boxed{1}."]),
        (DeepMath(), {"r1_solution_1": "one", "r1_solution_2": "two", "r1_solution_3": None}, ["one", "two"]),
        (DeepMath(), {"solution": "$1$"}, []),
        (DeepCoder(), {"solutions": ["```python\nprint(1)\n```", "print(2)"]}, ["print(1)\n", "print(2)"]),
        (Codeforces(), {}, []),
        (LiveCodeBench(), {}, []),
    ],
)
def test_known_good(dataset: Any, row: dict[str, Any], known: list[str]) -> None:
    assert dataset.known(row) == KnownAnswers(tuple(known))


def test_known_answers_of_code_contests() -> None:
    hub = {
        "solutions": {"language": [2, 3, 2], "solution": ["a", "python", "b"]},
        "incorrect_solutions": {"language": [1, 2], "solution": ["python2", "c"]},
    }
    original = {"solutions": [{"language": "CPP", "solution": "a"}, {"language": "JAVA", "solution": "b"}]}
    assert CodeContests().known(hub) == KnownAnswers(("a", "b"), ("c",))
    assert CodeContests().known(original) == KnownAnswers(("a",))
    assert CodeContests().known({}) == KnownAnswers()
