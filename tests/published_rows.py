"""A few rows in the layout of every published dataset that the documentation names, under their own names."""

import gzip
import json
import random
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["clone", "hub"]

_TESTS = {"input": ["1 2\n"], "output": ["3\n"]}
_MORE = {"input": ["2 2\n", "2 3\n"], "output": ["4\n", "5\n"]}
_AWS = "3_distributed_training/reinforcement-learning/grpo/veRL/multi-node/data"


def hub(folder: Path) -> None:
    """Datasets of the Hugging Face hub as directories, which `--input org/name` finds before it asks the hub."""
    contests = [_contest(f"{at}_A. Sum", rating) for at, rating in enumerate((800, 1000, 1100, 2200))]
    held_out = {"description": f"Given are two parts of a rope. Print the length of all of it. {_story('rope')}"}
    _write(folder / "deepmind/code_contests/train.jsonl", contests)
    _write(
        folder / "deepmind/code_contests/test.jsonl",
        [{**each, **held_out, "name": f"t{each['name']}"} for each in contests],
    )
    maths = [
        {"prompt": [{"role": "user", "content": f"What is {a} plus {a}?"}], "solution": f"${2 * a}$"}
        for a in range(200)
    ]
    _write(folder / "trl-lib/DeepMath-103K/train.jsonl", maths)
    coder = folder / "agentica-org/DeepCoder-Preview-Dataset"
    _write(coder / "primeintellect/train.jsonl", [_program(f"Add {a}.", a) for a in range(100)])
    _write(coder / "codeforces/test.jsonl", [_program("Double it.", 1)])
    _write(coder / "taco/train.jsonl", [_program(f"Take {a} away.", -a) for a in range(1, 20)])
    tests = json.dumps({"inputs": ["1\n"], "outputs": ["3\n"]})
    _write(
        folder / "inclusionAI/AReaL-boba-2-RL-Code/lcb_v5.jsonl", [{"question": "Treble it.", "input_output": tests}]
    )
    for split, rows in (("train", _sums(50)), ("test", _sums(60)[50:])):
        _write(folder / f"openai/gsm8k/main/{split}.jsonl", rows)
    _write(folder / "google-research-datasets/mbpp/mbpp.jsonl", [_function(number) for number in (11, 12, 601, 602)])
    (folder / "openai/openai_humaneval").mkdir(parents=True)
    (folder / "openai/openai_humaneval/HumanEval.jsonl.gz").write_bytes(_human_eval())


def clone(address: str, folder: Path) -> None:
    """What `git clone` of a repository with data leaves in a folder."""
    if address.endswith("amazon-sagemaker-generativeai"):
        for split, count in (("train", 4), ("test", 2)):
            file = folder / _AWS / split / "dataset.parquet"
            file.parent.mkdir(parents=True)
            rows = [_codefu(f"{split}{at}_A. Sum") for at in range(count)]
            pq.write_table(pa.Table.from_pylist(rows), file)
    elif address.endswith("grade-school-math"):
        rows = _sums(60)
        _write(folder / "grade_school_math/data/train.jsonl", rows[:50])
        _write(folder / "grade_school_math/data/test.jsonl", rows[50:])
    elif address.endswith("human-eval"):
        (folder / "data").mkdir(parents=True)
        (folder / "data/HumanEval.jsonl.gz").write_bytes(_human_eval())
    else:
        raise ValueError(f"no rows are known for {address}")


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(map(json.dumps, rows)))


def _contest(name: str, rating: int) -> dict[str, Any]:
    return {
        "name": name,
        "cf_rating": rating,
        "description": f"Read two numbers and write their sum. {_story('sum')}",
        "public_tests": _TESTS,
        "private_tests": _MORE,
        "generated_tests": {"input": [], "output": []},
        "time_limit": {"seconds": 2, "nanos": 0},
        "memory_limit_bytes": 256_000_000,
        "input_file": "",
        "output_file": "",
    }


def _story(subject: str) -> str:
    """Words of a statement that no other has: most of it, or the problems would overlap by their common words."""
    drawn = random.Random(subject)
    return " ".join("".join(drawn.choices(ascii_lowercase, k=2)) for _ in range(80))


def _codefu(name: str) -> dict[str, Any]:
    """A row as AWS published it."""
    truth = {"name": name, "cf_rating": 800, "memory_limit_bytes": 256_000_000, "public_tests": _TESTS}
    truth |= {"time_limit": {"seconds": 2.0, "nanos": 0.0}, "private_tests": _MORE}
    return {
        "data_source": "code_contests",
        "prompt": [{"role": "user", "content": "<|im_start|>user\nSum two numbers.\n<|im_start|>assistant\n"}],
        "ability": "coding-cp",
        "reward_model": {"style": "rule", "ground_truth": truth},
    }


def _program(problem: str, add: int) -> dict[str, Any]:
    tests = [{"type": "stdin_stdout", "input": f"{a}\n", "output": f"{a + add}\n"} for a in range(2)]
    return {"problem": problem, "solutions": [], "tests": json.dumps(tests)}


def _sums(count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {a} and {a}?", "answer": f"Twice.\n#### {2 * a}"} for a in range(count)]


def _human_eval() -> bytes:
    row = {
        "task_id": "HumanEval/0",
        "prompt": 'def one():\n    """One."""\n',
        "canonical_solution": "    return 1\n",
        "test": "def check(candidate):\n    assert candidate() == 1\n",
        "entry_point": "one",
    }
    return gzip.compress(json.dumps(row).encode())


def _function(number: int) -> dict[str, Any]:
    """A row of MBPP: from 11 on held out, from 601 on to train with."""
    return {
        "task_id": number,
        "text": f"Write a function to add {number} to a number. {_story(str(number))}",
        "code": f"def add(a):\n    return a + {number}",
        "test_list": [f"assert add({a}) == {a + number}" for a in range(3)],
        "test_setup_code": "",
        "challenge_test_list": [],
    }
