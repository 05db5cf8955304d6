"""`dojang eval` on the shipped model: determinism, comparisons, adapters, invalid arguments."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from dojang.commands import app
from dojang.core.errors import ConfigError, DataError, ModelError
from dojang.evaluation.cases import numbers
from dojang.evaluation.report import plot_shots, report

ASKED = ["eval", "dojang-tiny", "--data", "arithmetic", "--max-tokens", "24", "--device", "cpu"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def greedy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("eval") / "greedy"
    run(*ASKED, "--problems", "30", "--output", str(output))
    return output


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("eval") / "sampled"
    told = run(*ASKED, "--problems", "30", "--samples", "4", "--output", str(output))
    assert "pass@4" in told
    return output


def results(folder: Path) -> dict[str, Any]:
    (only,) = json.loads((folder / "results.json").read_text())["results"]
    assert isinstance(only, dict)
    return only


def test_output_files(sampled: Path) -> None:
    assert {each.name for each in sampled.iterdir()} == {
        *("results.json", "results.csv", "report.md", "samples.jsonl", "settings.json")
    }
    found = results(sampled)
    answers, accuracy, chances = found["answers"], found["accuracy"], found["pass_at"]
    assert isinstance(answers, list)
    assert isinstance(accuracy, dict)
    assert isinstance(chances, dict)
    assert [each["samples"] for each in answers] == [4] * 30
    assert accuracy["value"] == pytest.approx(sum(each["right"] for each in answers) / 120)
    assert chances["1"]["value"] == pytest.approx(accuracy["value"])
    assert chances["1"]["value"] < chances["2"]["value"] < chances["4"]["value"]
    with (sampled / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["right"]) for row in rows] == [each["right"] for each in answers]
    text = (sampled / "report.md").read_text()
    assert "| arithmetic | 30 |" in text
    assert "95% intervals: Clopper-Pearson, n = problems." in text


@pytest.mark.parametrize("more", [[], ["--samples", "4"]], ids=["greedy", "sampled"])
def test_evaluation_is_deterministic(more: list[str], request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run(*ASKED, "--problems", "30", *more, "--output", str(tmp_path / "again"))
    assert results(tmp_path / "again") == results(request.getfixturevalue("sampled" if more else "greedy"))


def test_compare_two_evaluations(greedy: Path, sampled: Path) -> None:
    told = run("eval", "--compare", str(greedy), str(sampled / "results.json"))
    assert "| arithmetic | 30 |" in told
    assert "paired permutation test over problems, exact" in told
    assert "equally many samples of both models" in told  # 1 and 4
    assert "+0.0% [-8.7%, +8.7%] | 1 |" in run("eval", "--compare", str(greedy), str(greedy))


def with_shots(folder: Path, found: dict[str, Any], model: str, trained_from: str, rights: list[int]) -> Path:
    """An evaluation of 50 problems with 0, 2 and 8 shots."""
    results = [
        {
            "data": "gsm8k",
            "shots": shots,
            "answers": [{**found["answers"][0], "id": str(at), "samples": 1, "right": at < right} for at in range(50)],
        }
        for shots, right in zip((0, 2, 8), rights, strict=True)
    ]
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"model": model, "trained_from": trained_from, "results": results}))
    return folder


@pytest.mark.parametrize("trained_from", ["smollm2", ""])
def test_comparison_is_written_and_drawn_over_shots(
    greedy: Path, tmp_path: Path, trained_from: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *told, **more: (figures.append(self), save(self, *told, **more))
    )
    first = with_shots(tmp_path / "a", results(greedy), "smollm2", "", [5, 10, 20])
    second = with_shots(tmp_path / "b", results(greedy), "runs/mine-1", trained_from, [15, 20, 25])
    told = run("eval", "--compare", str(first), str(second), "--output", str(tmp_path / "out"))
    labels = ["base: smollm2", "trained: runs/mine-1"] if trained_from else ["smollm2", "runs/mine-1"]
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"comparison.md", "comparison.png"}
    text = (tmp_path / "out" / "comparison.md").read_text()
    assert f"| {labels[0]} | {labels[1]} | difference | p |" in text
    assert "| gsm8k, 8 shots | 50 | 40.0% | 50.0% | +10.0%" in text
    assert "gsm8k, 8 shots" in told
    (axes,) = figures[0].axes
    lines = {each.get_label(): each.lines[0].get_xydata().tolist() for each in axes.containers}
    assert lines == {labels[0]: [[0, 0.1], [2, 0.2], [8, 0.4]], labels[1]: [[0, 0.3], [2, 0.4], [8, 0.5]]}
    with pytest.raises(ConfigError, match="is not empty"):
        run("eval", "--compare", str(first), str(second), "--output", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["eval"], ConfigError, "give a MODEL and --data NAME or FILE, or --recipe RECIPE"),
        (["eval", "data.digits=3"], ConfigError, "give a MODEL and --data NAME or FILE, or --recipe RECIPE"),
        (["eval", "dojang-tiny"], ConfigError, "no dataset to evaluate on; give --data NAME or FILE"),
        (
            ["eval", "dojang-tiny", "--data", "sums"],
            ConfigError,
            "--data sums is neither agent_tasks, arithmetic, functions",
        ),
        (["eval", "dojang-tiny", "--data", "arithmetic", "--shots", "2"], ConfigError, "--shots is for gsm8k"),
        (["eval", "dojang-tiny", "--data", "gsm8k", "--shots", "two"], ConfigError, "must be comma-separated numbers"),
        (["eval", "dojang-tiny", "--data", "gsm8k", "--shots", "99"], ConfigError, "shots=99 is more than the 8"),
        ([*ASKED, "model.name=dojang-tiny-code"], ConfigError, "is not the MODEL dojang-tiny; give it as MODEL"),
        ([*ASKED, "data.style=prose"], ConfigError, "data.style: no such key"),
        ([*ASKED, "eval.samples=4"], ConfigError, "greedy answers would all be the same"),
        ([*ASKED, "--recipe", "nothing"], ConfigError, "unknown recipe 'nothing'"),
        (["eval", "--compare", "/none", "/none"], DataError, "is not an output of `dojang eval --output`"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], kind: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=words):
        run(*arguments, *(["--output", str(tmp_path / "x")] if "--compare" not in arguments else []))


@pytest.mark.parametrize("override", ["data.train_size=8", "model.name=dojang-tiny"])
def test_a_recipe_has_a_model_of_its_own(override: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run("eval", override, "--recipe", "quickstart", "--problems", "4", "--device", "cpu", "--output", str(output))
    found = json.loads((output / "results.json").read_text())
    assert (found["model"], found["recipe"], found["overrides"]) == ("dojang-tiny", "quickstart", [override])
    assert results(output)["data"] == "arithmetic"


def test_existing_results_are_not_overwritten(greedy: Path) -> None:
    with pytest.raises(ConfigError, match="is not empty"):
        run(*ASKED, "--output", str(greedy))


@pytest.fixture(scope="module", params=[16, 4], ids=["lora", "qlora"])
def adapter_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step that trained an adapter."""
    if request.param == 4:
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    folder = tmp_path_factory.mktemp("adapter") / "run"
    settings = [
        *(
            "model.device=cpu",
            "steps=1",
            "seed=3",
            "rollout.prompts_per_step=6",
            "rollout.group_size=6",
            "rollout.max_tokens=40",
        ),
        *(f"train.lora={{rank: 4, base_bits: {request.param}}}", "train.lr=0.02", "eval.problems=40"),
    ]
    run("train", "quickstart", *settings, "--run-dir", str(folder))
    return folder


def graded(parquet: Path) -> dict[str, float]:
    """Rewards by problem."""
    return {row["problem"]: row["reward"] for row in pq.read_table(parquet).to_pylist()}


@pytest.mark.parametrize("of", ["run", "checkpoint"])
def test_adapter_evaluation_equals_that_of_its_run(adapter_run: Path, of: str, tmp_path: Path) -> None:
    """Without --data: dataset, task and max_tokens of the run."""
    step = adapter_run / "checkpoints" / "step-000001"
    asked = adapter_run if of == "run" and (adapter_run / "checkpoints" / "best").resolve() == step else step
    run("eval", str(asked), "--device", "cpu", "--problems", "40", "--output", str(tmp_path / "out"))
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    (result,) = found["results"]
    trained = graded(adapter_run / "rollouts" / "test-000001.parquet")
    assert {each["id"]: each["reward"] for each in result["answers"]} == trained
    assert trained != graded(adapter_run / "rollouts" / "test-000000.parquet")  # the adapter has changed the answers
    assert (found["trained_from"], found["settings"]["max_tokens"], result["data"]) == ("dojang-tiny", 40, "arithmetic")


def test_adapter_without_base_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/nowhere/model"}')
    with pytest.raises(ModelError, match=r"base model that .*adapter_config.json names cannot be found.*/nowhere"):
        run("eval", str(tmp_path), "--data", "arithmetic", "--output", str(tmp_path / "x"))


def test_adapter_that_does_not_fit_is_refused(adapter_run: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(adapter_run / "checkpoints" / "step-000001", saved)
    settings = json.loads((saved / "adapter_config.json").read_text())
    (saved / "adapter_config.json").write_text(json.dumps(settings | {"modules_to_save": ["norm"]}))
    with pytest.raises(ModelError, match=r"does not fit its base model .*norm"):
        run("eval", str(saved), "--data", "arithmetic", "--max-tokens", "8", "--output", str(tmp_path / "x"))


def test_sweep_over_shots_is_drawn_and_reported(sampled: Path, tmp_path: Path) -> None:
    found = json.loads((sampled / "results.json").read_text())
    (one,) = found["results"]
    found["results"] = [{**one, "data": "gsm8k", "shots": shots} for shots in (0, 2, 8)]
    plot_shots(tmp_path / "shots.png", found)
    assert (tmp_path / "shots.png").read_bytes().startswith(b"\x89PNG")
    assert "| gsm8k, 8 shots | 30 |" in report(found)
    assert numbers("0,2,8") == [0, 2, 8]


def test_puzzles_are_reported_by_generator(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    asked = [each if each != "arithmetic" else "reasoning_gym=chain_sum+gcd" for each in ASKED]
    told = run(*asked, "--problems", "8", "--output", str(tmp_path / "out"))
    assert "| chain_sum | " in told
    assert "| gcd | " in told
    with pytest.raises(DataError, match="did you mean 'chain_sum'"):
        run(*[each if each != "arithmetic" else "reasoning_gym=chain_sums" for each in ASKED])
