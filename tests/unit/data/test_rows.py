"""Problems become rows and problems again; rows of others are read, too."""

import json
from pathlib import Path
from typing import Any

import pytest

from dojang.core.errors import DataError
from dojang.data.prepared import PreparedConfig
from dojang.data.rows import from_row, io_tests, limits, to_row
from dojang.types import Message, Problem

PROBLEM = Problem(
    id="set/1",
    source="set",
    messages=(Message("system", "Be brief."), Message("user", "Solve it.")),
    reference={"private": [{"input": "1\n", "output": "2\n"}], "limits": {"cpu_s": 1.0}},
    tier="easy",
)
THEIRS: dict[str, Any] = {
    "data_source": "code_contests",
    "prompt": [{"role": "user", "content": "<|im_start|>user\nSolve it.\n\n<|im_start|>assistant\n"}],
    "ability": "coding-cp",
    "reward_model": {
        "style": "rule",
        "ground_truth": {
            "name": "1_A. Sum",
            "cf_rating": 800,
            "memory_limit_bytes": 256_000_000,
            "time_limit": {"seconds": 1.0, "nanos": 5e8},
            "public_tests": {"input": ["1\n"], "output": ["2\n"]},
            "private_tests": {"input": ["3\n", "5\n"], "output": ["4\n", "6\n"]},
        },
    },
}


@pytest.mark.parametrize("reference", [PROBLEM.reference, "12", r"\frac{1}{2}", '"quoted"', "{set}", ""])
def test_a_problem_survives_writing_and_reading(reference: object) -> None:
    problem = Problem(PROBLEM.id, PROBLEM.source, PROBLEM.messages, reference, PROBLEM.tier)
    row = to_row(problem, ability="code", split="train", index=3)
    assert from_row(row, "here") == problem
    assert row["extra_info"] == {"id": "set/1", "split": "train", "index": 3, "tier": "easy"}


@pytest.mark.parametrize("answer", ["12", "007", "NaN", r"\frac{1}{2}", "[1, 2]", "{1,2}", '"a'])
def test_an_answer_of_others_is_left_as_it_is(answer: str) -> None:
    row = {**THEIRS, "reward_model": {"style": "rule", "ground_truth": answer}}
    assert from_row(row, "part/7") == Problem("part/7", "code_contests", (Message("user", "Solve it."),), answer)


@pytest.mark.parametrize(("truth", "answer"), [(18, "18"), (18.0, "18"), (0.5, "0.5"), (10**20, f"1{'0' * 20}")])
def test_a_number_is_an_answer(truth: float, answer: str) -> None:
    assert from_row({**THEIRS, "reward_model": {"style": "rule", "ground_truth": truth}}, "x").reference == answer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": [{"role": "user", "content": "\ud800 + 1"}]}, "surrogates not allowed"),
        ({"prompt": "9 * 2 ="}, "the prompt is text, and must be a list of messages"),
        ({"reward_model": {"ground_truth": True}}, "this is True"),
        ({"reward_model": {"ground_truth": float("nan")}}, "this is nan"),
        ({"reward_model": {"ground_truth": None}}, "this is None"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_row({**THEIRS, **change}, "x")


def test_tests_of_others_are_read_and_their_template_is_taken_out() -> None:
    found = from_row(THEIRS, "part/7")
    assert found.id == "1_A. Sum"
    assert found.messages == (Message("user", "Solve it."),)
    assert found.reference == {
        "private": [{"input": "3\n", "output": "4\n"}, {"input": "5\n", "output": "6\n"}],
        "public": [{"input": "1\n", "output": "2\n"}],
        "limits": {"cpu_s": 1.5, "memory_mb": 256},
        "checker": {"name": "contest"},
    }


def test_a_whole_conversation_in_a_template_is_taken_apart() -> None:
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    found = from_row({**THEIRS, "prompt": [{"role": "user", "content": text}]}, "here")
    assert found.messages == (Message("system", "Be brief."), Message("user", "Why?"))


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": []},
        {"prompt": [{"role": "poet", "content": "Sing."}]},
        {"prompt": None},
        {"reward_model": {"style": "rule", "ground_truth": None}},
        {"reward_model": {"style": "rule", "ground_truth": {"private_tests": {"input": ["1"], "output": []}}}},
        {"reward_model": None},
    ],
)
def test_invalid_row_is_refused_with_its_position(change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"^part/7: not a row of data_source, prompt"):
        from_row({**THEIRS, **change}, "part/7")


def test_tests_are_lists_or_pairs() -> None:
    expected = [{"input": "1", "output": "2"}]
    assert io_tests({"input": ["1"], "output": ["2"]}) == io_tests([{"input": "1", "output": "2"}]) == expected
    assert io_tests({"input": None, "output": None}) == io_tests(None) == io_tests([]) == []


@pytest.mark.parametrize(
    ("seconds", "nanos", "size"), [(0, 0, 1e9), (-1, 0, 1e9), (1, 0, 0), (1, 0, 1e6), (9999, 0, 1e9)]
)
def test_invalid_limits_are_refused(seconds: float, nanos: float, size: float) -> None:
    with pytest.raises(ValueError, match="are not valid limits"):
        limits({"seconds": seconds, "nanos": nanos}, size)


def test_a_ground_truth_is_json_whatever_is_in_it() -> None:
    odd = Problem("a", "b", (Message("user", "c"),), {"private": [{"input": "\u2028\ud800", "output": "\x00"}]})
    row = to_row(odd, ability="code", split="test", index=0)
    assert json.loads(row["reward_model"]["ground_truth"]) == odd.reference


def with_truth(**changes: Any) -> dict[str, Any]:
    """The row of the AWS post, with another ground truth; None removes a key."""
    truth = {**THEIRS["reward_model"]["ground_truth"], **changes}
    return {key: value for key, value in truth.items() if value is not None}


TIME_LIMITS = [
    (2.0, 2.0),
    (2, 2.0),
    ("2.0", 2.0),
    ("2 seconds", 2.0),
    ({"seconds": 1, "nanos": 500_000_000}, 1.5),
    ({"seconds": 2.0, "nanos": None}, 2.0),
    ({"seconds": None, "nanos": None}, None),
    (None, None),
]


@pytest.mark.parametrize("as_json", [False, True], ids=["object", "JSON text"])
@pytest.mark.parametrize(("time_limit", "seconds"), TIME_LIMITS)
def test_time_limits_of_published_rows(time_limit: object, seconds: float | None, as_json: bool) -> None:
    truth = with_truth(time_limit=time_limit)
    row = {**THEIRS, "reward_model": {"style": "rule", "ground_truth": json.dumps(truth) if as_json else truth}}
    found = from_row(row, "part/7")
    expected = {"memory_mb": 256} | ({"cpu_s": seconds} if seconds else {})
    assert isinstance(found.reference, dict)
    assert found.reference["limits"] == expected
    assert (found.id, found.tier, len(found.reference["private"])) == ("1_A. Sum", "easy", 2)


def test_a_row_without_limits_and_public_tests_leaves_them_to_the_judge() -> None:
    truth = with_truth(time_limit=None, memory_limit_bytes=None, public_tests=None)
    found = from_row({**THEIRS, "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)}}, "part/7")
    assert isinstance(found.reference, dict)
    assert found.reference.keys() == {"private", "public", "checker"}
    assert found.reference["public"] == []


@pytest.mark.parametrize(
    ("time_limit", "words"),
    [
        ("soon", "'soon' is not a number of seconds"),
        ([2], "neither a number of seconds"),
        (-1.0, "are not valid limits"),
    ],
)
def test_invalid_time_limit_is_refused(time_limit: object, words: str) -> None:
    row = {**THEIRS, "reward_model": {"ground_truth": with_truth(time_limit=time_limit)}}
    with pytest.raises(DataError, match=words):
        from_row(row, "part/7")


@pytest.mark.parametrize(
    ("rating", "tier"),
    [(800, "easy"), (1000.0, "easy"), ("1100", "hard"), (3500, "expert"), (3600, "rating 3600"), (0, ""), (None, "")],
)
def test_the_tier_follows_from_the_rating(rating: object, tier: str) -> None:
    row = {**THEIRS, "reward_model": {"ground_truth": with_truth(cf_rating=rating)}}
    assert from_row(row, "part/7").tier == tier
    assert from_row({**row, "extra_info": {"tier": "mine"}}, "part/7").tier == "mine"


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train/rows.jsonl"])
def test_rows_in_json_files_are_read(tmp_path: Path, name: str) -> None:
    rows = [{**THEIRS, "reward_model": {"ground_truth": with_truth(cf_rating=each)}} for each in (800, 1200, None)]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(json.dumps(rows) if name.endswith(".json") else "\n".join(map(json.dumps, rows)))
    config = PreparedConfig(path=tmp_path)
    assert [each.tier for each in config.load("train")] == ["easy", "hard", ""]
    assert [each.tier for each in PreparedConfig(path=tmp_path, tiers=("easy",)).load("train")] == ["easy", ""]
    assert config.task_name("train") == "code"
    with pytest.raises(DataError, match=r"has no test/\*\.parquet, test\.parquet"):
        config.load("test")


def test_a_plain_text_prompt_survives_writing_and_reading() -> None:
    problem = Problem("a", "b", (Message("text", "Question: "), Message("text", "1+1?")), "2")
    assert from_row(to_row(problem, ability="math", split="train", index=0), "here") == problem
