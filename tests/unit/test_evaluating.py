"""`dojang eval` as it is typed: the shipped model on sums, twice the same; comparisons; mistakes."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dojang.cli import app
from dojang.errors import ConfigError, DataError
from dojang.evaluating import _plot, _report, numbers

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


def results(folder: Path) -> dict[str, object]:
    (only,) = json.loads((folder / "results.json").read_text())["results"]
    assert isinstance(only, dict)
    return only


def test_what_is_written(sampled: Path) -> None:
    assert {each.name for each in sampled.iterdir()} == {"results.json", "results.csv", "report.md"}
    found = results(sampled)
    answers, accuracy, chances = found["answers"], found["accuracy"], found["pass_at"]
    assert isinstance(answers, list)
    assert isinstance(accuracy, dict)
    assert isinstance(chances, dict)
    assert [each["attempts"] for each in answers] == [4] * 30
    assert accuracy["value"] == pytest.approx(sum(each["right"] for each in answers) / 120)
    assert chances["1"]["value"] == pytest.approx(accuracy["value"])
    assert chances["1"]["value"] < chances["2"]["value"] < chances["4"]["value"]
    with (sampled / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["right"]) for row in rows] == [each["right"] for each in answers]
    assert "| arithmetic | 30 |" in (sampled / "report.md").read_text()


@pytest.mark.parametrize("more", [[], ["--samples", "4"]], ids=["greedy", "sampled"])
def test_evaluating_twice_gives_the_same(more: list[str], request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run(*ASKED, "--problems", "30", *more, "--output", str(tmp_path / "again"))
    assert results(tmp_path / "again") == results(request.getfixturevalue("sampled" if more else "greedy"))


def test_two_evaluations_beside_each_other(greedy: Path, sampled: Path) -> None:
    told = run("eval", "--compare", str(greedy), str(sampled / "results.json"))
    assert "| arithmetic | 30 |" in told
    assert "paired bootstrap" in told
    assert "+0.0% [+0.0%, +0.0%] | 1 |" in run("eval", "--compare", str(greedy), str(greedy))


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["eval"], ConfigError, "give a MODEL and --data NAME, or --compare A B"),
        (["eval", "dojang-tiny"], ConfigError, "give a MODEL and --data NAME"),
        (["eval", "dojang-tiny", "--data", "sums"], ConfigError, "--data sums is neither gsm8k"),
        (["eval", "dojang-tiny", "--data", "arithmetic", "--shots", "2"], ConfigError, "--shots is for gsm8k"),
        (["eval", "dojang-tiny", "--data", "gsm8k", "--shots", "two"], ConfigError, "must be numbers with commas"),
        (["eval", "dojang-tiny", "--data", "gsm8k", "--shots", "99"], ConfigError, "data.gsm8k.shots"),
        (["eval", "--compare", "/none", "/none"], DataError, "is not what `dojang eval --output` writes"),
    ],
)
def test_mistakes(arguments: list[str], kind: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=words):
        run(*arguments, *(["--output", str(tmp_path / "x")] if "--compare" not in arguments else []))


def test_results_are_not_written_over(greedy: Path) -> None:
    with pytest.raises(ConfigError, match="is not empty"):
        run(*ASKED, "--output", str(greedy))


def test_an_adapter_has_to_be_merged_first(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / "best").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "best" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="holds an adapter; `dojang export"):
        run("eval", str(tmp_path / "run"), "--data", "arithmetic", "--output", str(tmp_path / "x"))


def test_a_sweep_over_shots_is_drawn_and_told(sampled: Path, tmp_path: Path) -> None:
    found = json.loads((sampled / "results.json").read_text())
    (one,) = found["results"]
    found["results"] = [{**one, "data": "gsm8k", "shots": shots} for shots in (0, 2, 8)]
    _plot(tmp_path / "shots.png", found)
    assert (tmp_path / "shots.png").read_bytes().startswith(b"\x89PNG")
    assert "| gsm8k, 8 shots | 30 |" in _report(found)
    assert numbers("0,2,8") == [0, 2, 8]


def test_puzzles_are_told_by_generator(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    asked = [each if each != "arithmetic" else "reasoning_gym=chain_sum+gcd" for each in ASKED]
    told = run(*asked, "--problems", "8", "--output", str(tmp_path / "out"))
    assert "| chain_sum | " in told
    assert "| gcd | " in told
    with pytest.raises(DataError, match="did you mean 'chain_sum'"):
        run(*[each if each != "arithmetic" else "reasoning_gym=chain_sums" for each in ASKED])
