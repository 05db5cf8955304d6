"""`dojang plan` as it is typed."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dojang.audit.answers import AnswerAudit
from dojang.audit.findings import Audited
from dojang.audit.options import AuditSettings
from dojang.commands import app
from dojang.core.errors import ConfigError, DojangError
from dojang.data.prepare_rows import KnownAnswers
from dojang.planning.instances import find_instance
from dojang.planning.shapes import find_shape
from dojang.tasks import answer_line
from dojang.tasks.reasoning_gym import ReasoningGymTaskConfig
from dojang.types import Message, Outcome, Problem, Verdict


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def told(*arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=code))
    return found


def test_the_quickstart_can_be_run_here() -> None:
    said = run("quickstart")
    assert "4,096 training and 256 held-out problems" in said
    assert "8 problems tried: their own answers get full marks, others do not" in said
    assert "memory of the process on 1 x this machine" in said
    assert "p5en.48xlarge" in said


def test_json_has_the_same() -> None:
    found = told("quickstart", "--instance", "ml.g5.xlarge", "--problems", "2")
    assert found["ok"] is True
    assert found["models"]["policy"]["parameters"] == 113_216
    assert found["estimate"]["instance"] == "g5.xlarge"
    assert found["estimate"]["fits"] == "yes"
    assert found["estimate"]["peak_bytes"] == max(found["estimate"]["phases"].values())
    assert {each["instance"] for each in found["instances"]} >= {"p4d.24xlarge", "h200", "c7i.4xlarge"}
    assert found["estimate"]["time"]["usd"] == pytest.approx(1.006 * found["estimate"]["time"]["hours"])


def test_a_price_and_a_length_can_be_given() -> None:
    usual = told("quickstart", "--instance", "g5.xlarge", "--problems", "1")["estimate"]["time"]
    other = told("quickstart", "--instance", "g5.xlarge", "--problems", "1", "--price", "2", "--length", "8")
    assert other["estimate"]["time"]["usd"] == pytest.approx(2 * other["estimate"]["time"]["hours"])
    assert other["estimate"]["time"]["step_s"] < usual["step_s"]
    assert other["estimate"]["time"]["update_s"] <= usual["update_s"]  # kernels of so small a model take no time


def test_real_answers_get_full_marks(shared_data: Path) -> None:
    said = run("smollm2-gsm8k", f"data.path={shared_data / 'gsm8k'}", "--instance", "h200")
    assert "8 problems tried: their own answers get full marks" in said
    assert "7,473 training and 1,319 held-out problems" in said


@pytest.mark.parametrize(("accepted", "names"), [("7", set()), ("8", {"refused"}), ("", {"refused", "accepts_wrong"})])
def test_puzzles_are_tried_with_their_own_answers(accepted: str, names: set[str]) -> None:
    class Task:
        async def grade(self, problem: Problem, text: str) -> Verdict:
            right = text == f"<answer>{accepted}</answer>"
            return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, float(right))

    reference = {"generator": "chain_sum", "settings": {}, "entry": "{'answer': '7', 'metadata': (1, 2)}"}
    audited = Audited(Problem("puzzle/1", "reasoning_gym", (Message("user", "3 + 4?"),), reference), "train")
    audit = AnswerAudit(Task(), ReasoningGymTaskConfig(), AuditSettings(repeats=1))  # type: ignore[arg-type]
    asyncio.run(audit.audit(audited, KnownAnswers()))
    assert audited.names == names


def test_formulas_are_compared_with_themselves_and_others(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    rows = [
        {"question": f"what is the half of {each}?", "answer": f"\\frac{{{each}}}{{2}}"} for each in range(3, 43, 2)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"data={{name: files, train: {file}, held_out: 0.3}}"
    said = run("quickstart", data, "task={name: maths, workers: 1}", "--problems", "2")
    assert "2 problems tried: their own answers get full marks" in said


def test_rows_without_solutions_are_reported() -> None:
    said = run("quickstart-code", "--problems", "2", "judge.workers=1")
    assert "the rows have tests but no solutions" in said


def test_all_mistakes_in_a_configuration_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        run("quickstart", "steps=x", "rollout.group_siz=4")
    assert "steps" in str(caught.value)
    assert "did you mean rollout.group_size" in str(caught.value)


def test_missing_data_fail_but_the_rest_is_estimated() -> None:
    found = told("codefu-7b-post", "--instance", "p4de.24xlarge", "--nodes", "2", code=3)
    assert found["ok"] is False
    assert any("data.path" in each["said"] for each in found["findings"] if each["level"] == "failed")
    assert (found["estimate"]["ranks"], found["estimate"]["servers"]) == (8, 4)


def test_a_gold_answer_that_is_refused_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_line, "is_correct", lambda text, reference: False)
    assert "its own answer is refused" in run("quickstart", "--problems", "1", code=7)


def test_a_wrong_answer_that_is_accepted_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def grade(task: object, problem: object, text: str) -> Verdict:
        return Verdict(Outcome.ACCEPTED, 1.0)

    monkeypatch.setattr(answer_line.AnswerLineTask, "grade", grade)
    assert "a wrong answer is accepted" in run("quickstart", "--problems", "1", code=7)


def test_answers_that_no_context_holds_fail() -> None:
    said = run("quickstart", "rollout.max_tokens=510", "--problems", "1", code=4)
    assert "at most 502 can be answered" in said


def test_a_model_of_unknown_shape_is_reported() -> None:
    found = told("quickstart", "model.name=nobody/knows-this", "--problems", "1")
    assert found["estimate"] is None
    assert found["models"]["policy"]["shape"] is None
    assert "unknown shape" in run("quickstart", "model.name=nobody/knows-this", "--problems", "1")


def test_a_model_of_another_family_gets_the_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    found = told("quickstart", f"model.name={tmp_path}", "--problems", "1")
    assert found["estimate"] is None
    assert "does not know model_type='gpt2'; plans are made for Llama, " in found["models"]["policy"]["from"]
    assert any("transformers' generate, which is SLOW" in each["said"] for each in found["findings"])


def test_a_model_that_cannot_be_found_fails() -> None:
    assert "does not exist" in run("quickstart", "model.name=./nowhere", "--problems", "1", code=4)


def test_a_directory_says_its_own_shape(tmp_path: Path) -> None:
    config = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 512, "head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    shape, by = find_shape(str(tmp_path))
    assert shape is not None
    assert (shape.queries, shape.kv_heads, shape.qk_norm) == (128, 4, True)
    assert by == "its config.json"


def test_context_of_longrope_is_the_original_one_for_the_torch_engine(tmp_path: Path) -> None:
    config = {"model_type": "phi3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 131072}
    config |= {"original_max_position_embeddings": 4096, "rope_scaling": {"type": "su"}}  # as in Phi-3-mini-128k
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    for torch_engine, context in ((True, 4096), (False, 131072)):
        shape, _ = find_shape(str(tmp_path), torch_engine=torch_engine)
        assert shape is not None
        assert shape.context == context


@pytest.mark.parametrize("arguments", [["--instance", "p4de.24xlarg"], ["--price", "3"]])
def test_options_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(DojangError, match=r"did you mean p4de|--price needs"):
        run("quickstart", *arguments)


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("p4de.24xlarge", 8),
        ("p5.48xlarge", 8),
        ("g6.48xlarge", 8),
        ("g6e.48xlarge", 8),
        ("g5.12xlarge", 4),
        ("m5.2xlarge", 0),
    ],
)
def test_instances_of_the_publications_are_known(name: str, gpus: int) -> None:
    assert find_instance(name).gpus == find_instance(f"ml.{name}").gpus == gpus
