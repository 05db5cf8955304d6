"""dojang.sample and dojang.evaluate."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import dojang
from dojang.core.errors import ConfigError

ROWS = [{"prompt": f"What is {a} + {a}?", "answer": str(2 * a)} for a in range(10, 14)]


def says_final(completions: list[str], **_: Any) -> list[float]:
    return [float("final" in each) for each in completions]


def test_samples_come_in_order_and_repeat_with_the_seed() -> None:
    prompts = ["What is 11 + 22?", [{"role": "user", "content": "What is 30 + 14?"}]]
    first = dojang.sample("dojang-tiny", prompts, n=3, max_tokens=24)
    assert [len(each) for each in first] == [3, 3]
    assert all(len(each.tokens) == len(each.logprobs) <= 24 for some in first for each in some)
    assert dojang.sample("dojang-tiny", prompts, n=3, max_tokens=24) == first
    assert dojang.sample("dojang-tiny", prompts, n=3, max_tokens=24, seed=1) != first
    greedy = dojang.sample("dojang-tiny", "What is 11 + 22?", n=2, temperature=0, max_tokens=24)
    assert greedy[0][0].text == greedy[0][1].text


@pytest.mark.parametrize(
    ("prompts", "options", "words"),
    [
        ([7], {}, "neither text nor a list of messages"),
        (None, {}, "prompts=None is neither text nor a list"),
        ("\ud800", {}, "surrogates not allowed"),
        ([{"role": "robot", "content": "x"}], {}, "a message needs a role"),
        ([{"role": "user", "content": None}], {}, "a message needs a role"),
        ("x", {"n": 0}, "n=0 must be a whole number of at least 1"),
        ("x", {"n": "2"}, "n='2' must be a whole number"),
        ("x", {"seed": 2**70}, "seed=.* must be a whole number of at least 0"),
        ("x", {"temperature": -1.0}, "temperature=-1.0 must be 0 or more"),
        ("x" * 3000, {}, r"do not fit the model's context of \d+ tokens; lower max_tokens or shorten the prompt$"),
    ],
)
def test_wrong_prompts_and_options_are_refused(prompts: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dojang.sample("dojang-tiny", prompts, **options)


def test_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="model=None is neither a name nor a path"):
        dojang.sample(None, "x")  # type: ignore[arg-type]
    for wrong in ({"samples": "x"}, {"problems": 0}, {"problems": 1.5}):
        with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
            dojang.evaluate("dojang-tiny", dataset=ROWS, **wrong)  # type: ignore[arg-type]


def test_a_stop_string_may_be_given_alone() -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    ((plain,),) = dojang.sample("dojang-tiny", "What is 11 + 22?", **options)
    stop = plain.text[2:5]
    assert dojang.sample("dojang-tiny", "What is 11 + 22?", stop=stop, **options) == dojang.sample(
        "dojang-tiny", "What is 11 + 22?", stop=[stop], **options
    )


def test_rows_are_evaluated_where_an_event_loop_runs(tmp_path: Path) -> None:
    async def cell() -> dojang.EvalResult:
        return dojang.evaluate(
            "dojang-tiny", dataset=ROWS, samples=2, max_tokens=24, output=tmp_path / "out", progress=False
        )

    result = asyncio.run(cell())
    assert len(result.samples) == 2 * len(ROWS)
    assert set(result.pass_at) == {1, 2}
    assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 2 * len(ROWS)


def test_a_run_is_evaluated_on_its_held_out_problems(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "rollout": {"prompts_per_step": 2, "group_size": 2, "max_tokens": 8},
        "eval": {"problems": 3},
    }
    run = dojang.train("quickstart", steps=1, run_dir=tmp_path / "run", progress=False, **small)
    result = dojang.evaluate(run.run_dir, max_tokens=8, problems=3, progress=False)
    assert [each.problem for each in result.samples] == [
        row["problem"] for row in run.eval_rollouts.to_pylist() if row["step"] == 1
    ]
    assert str(run.best_model) in str(Path(result.model).resolve())
    with pytest.raises(ConfigError, match="needs a dataset"):
        dojang.evaluate("dojang-tiny")


def test_reward_functions_and_a_number_of_rows() -> None:
    result = dojang.evaluate(
        "dojang-tiny", dataset=ROWS, reward_funcs=[says_final], max_tokens=24, problems=2, progress=False
    )
    assert len(result.samples) == 2
    assert result.reward == result.accuracy.value
