"""`evaluate(config) -> EvalResult`: samples, own rows and rewards, custom tasks, interrupted evaluations."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dojang.config.recipe import resolve
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, Interrupted
from dojang.evaluation import command
from dojang.evaluation.cases import find_subject, make_cases
from dojang.evaluation.evaluate_model import SAMPLES, SETTINGS, EvalResult, evaluate
from dojang.evaluation.options import Options
from dojang.evaluation.samples import read_samples
from dojang.types import Message, Outcome, Problem, Verdict

ROWS = [{"sum": "12+30", "total": 42}, {"sum": "5+6", "total": 11}, {"sum": "1+1", "total": "2"}]


def config_of(**sections: Any) -> RunConfig:
    tree = {
        "model": {"name": "dojang-tiny", "device": "cpu"},
        "data": {"name": "arithmetic"},
        "rollout": {"max_tokens": 8},
        "eval": {"problems": 6},
    }
    return resolve("test", tree | sections)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> EvalResult:
    return asyncio.run(evaluate(config_of(), output=tmp_path_factory.mktemp("eval") / "out"))


def test_every_completion_is_kept_with_its_verdict(whole: EvalResult) -> None:
    assert whole.output is not None
    lines = list(map(json.loads, (whole.output / SAMPLES).read_text().splitlines()))
    assert sorted(each["prompt_index"] for each in lines) == list(range(6))
    assert len(whole.samples) == 6
    for each in whole.samples:
        assert each.prompt[-1]["role"] == "user"
        assert each.reference is not None
        assert each.reward == pytest.approx(0.5 * each.parts["format"] + each.parts["correct"])
        assert (each.outcome == "accepted") == (each.parts["correct"] == 1)
        assert each.answer is None or each.answer in each.completion
        assert each.finish in ("stop", "length")
        assert 0 < each.completion_tokens <= 8
    assert whole.parts["correct"] == pytest.approx(whole.accuracy.value)
    assert whole.pass_at[1].value == whole.accuracy.value


def test_an_interrupted_evaluation_resumes_where_it_stopped(whole: EvalResult, tmp_path: Path) -> None:
    assert whole.output is not None
    output, seen = tmp_path / "out", list[int]()
    shutil.copytree(whole.output, output)
    lines = (output / SAMPLES).read_text().splitlines(keepends=True)
    (output / SAMPLES).write_text("".join(lines[:3]) + lines[3][:20])  # a crash cut off the last line
    with pytest.raises(
        ConfigError, match=r"already holds an evaluation; go on with it \(--resume, in Python resume=True"
    ):
        asyncio.run(evaluate(config_of(), output=output))
    with pytest.raises(ConfigError, match=r"eval.problems: was 6, now 5"):
        asyncio.run(evaluate(config_of(eval={"problems": 5}), output=output, resume=True))
    result = asyncio.run(
        evaluate(config_of(), output=output, resume=True, on_progress=lambda case, done, total: seen.append(done))
    )
    assert seen == [4, 5, 6]
    assert result.as_json() == whole.as_json()
    assert {(each.problem, each.completion) for each in read_samples(output / SAMPLES)} == {
        (each.problem, each.completion) for each in whole.samples
    }


def test_problems_and_task_made_in_python() -> None:
    class Loud:
        def problems(self, split: str) -> list[Problem]:
            return []

        async def grade(self, problem: Problem, text: str) -> Verdict:
            return Verdict(Outcome.ACCEPTED, 2.0, parts={"loud": 4.0})

    problems = [Problem(str(at), "mine", (Message("user", f"{at}+1"),), reference=None) for at in range(3)]
    config = config_of(eval={"samples": 2, "temperature": 1.0})
    result = asyncio.run(evaluate(config, problems=problems, task=Loud()))
    assert (result.accuracy.value, result.reward, result.parts) == (1, 2, {"loud": 4})
    assert [(each.problem, each.sample) for each in result.samples] == [(str(at), n) for at in range(3) for n in (0, 1)]
    assert result.output is None


def test_own_rows_with_own_reward_and_system_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "eval_rewards.py").write_text("def brevity(problem, text):\n    return 1 / (1 + len(text))\n")
    monkeypatch.syspath_prepend(tmp_path)
    overrides = [
        *("data.prompt=Add {sum}", "data.answer=total", "data.system=Be brief."),
        'task.rewards={correct: 1, "eval_rewards:brevity": 0.5}',
    ]
    rows = str(tmp_path / "rows.jsonl")
    command.run(
        "dojang-tiny",
        Options(1, 0.0, 10, 8, 0, "cpu", "auto"),
        data=[rows],
        overrides=overrides,
        output=tmp_path / "out",
    )
    found = sorted(read_samples(tmp_path / "out" / SAMPLES), key=lambda each: each.prompt_index)
    assert [each.prompt for each in found] == [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Add {row['sum']}"}] for row in ROWS
    ]
    assert [each.reference for each in found] == ["42", "11", "2"]
    assert all(each.parts["brevity"] == 1 / (1 + len(each.completion)) for each in found)
    (result,) = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert result["parts"].keys() == {"correct", "brevity"}
    assert (
        "| mean reward | total | correct (unweighted) | brevity (unweighted) |"
        in (tmp_path / "out" / "report.md").read_text()
    )


def test_override_names_the_dataset_and_the_task(tmp_path: Path) -> None:
    def config(*overrides: str) -> RunConfig:
        subject = find_subject("dojang-tiny", "quickstart-code")
        (case,) = make_cases(subject, [], [], Options(1, 0.0, 10, None, 0, "cpu", "auto"), overrides, print)
        assert case.data == case.config.data.name
        return case.config

    assert config().task.name == "code"
    other = config(
        "data.name=files", f"data.train={tmp_path}", "task.name=exact_match"
    )  # drops settings of the recipe's
    assert (other.data.name, other.task.name) == ("files", "exact_match")


def test_ctrl_c_names_the_samples_and_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: Any, **__: Any) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / SETTINGS).write_text("{}")  # the evaluation has begun
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "evaluate_cases", interrupted)
    options = Options(1, 0.0, 10, 8, 0, "cpu", "auto")
    with pytest.raises(Interrupted, match=r"samples.jsonl.*--output .*out --resume"):
        command.run("dojang-tiny", options, data=["arithmetic"], output=tmp_path / "out")
    with pytest.raises(ConfigError, match="name it with --output"):
        command.run("dojang-tiny", options, data=["arithmetic"], resume=True)
