"""Subsets of published datasets, and training problems that held-out sets have, too."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dojang.commands import app
from dojang.core.errors import ConfigError, DataError, Interrupted
from dojang.data.prepared import PreparedConfig

STATEMENT = (
    "Vasya walks along a street of {n} houses and writes down the number of every {n}th house whose roof is {colour}. "
    "Count how many distinct pairs of {colour} roofs he can see from house number {n} when the fog has a depth of {n}."
)
OTHER = "Given are {n} bottles of {colour} paint; print the smallest number of buckets that hold exactly {n} of them."


def row(text: str, n: int, colour: str) -> dict[str, Any]:
    tests = [{"type": "stdin_stdout", "input": f"{n}\n", "output": f"{n}\n"}]
    return {"problem": text.format(n=n, colour=colour), "solutions": [], "tests": json.dumps(tests)}


@pytest.fixture
def deepcoder(tmp_path: Path) -> Path:
    """The hub's layout: a directory for each subset."""
    rows = {
        "primeintellect/train-0.jsonl": [row(STATEMENT, 3, "red"), row(OTHER, 4, "green")],
        "taco/train-0.jsonl": [row(OTHER, 5, "blue")],
        "lcbv5/train-0.jsonl": [row("Sum the digits of a {colour} number below {n}.", 6, "pink")],
        "lcbv5/test-0.jsonl": [row("Print {n} {colour} stars in a row.", 7, "grey")],
        "codeforces/test-0.jsonl": [row("Once upon a time... " + STATEMENT, 3, "red")],
    }
    for name, some in rows.items():
        file = tmp_path / "hub" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(map(json.dumps, some)))
    return tmp_path / "hub"


def typed(name: str, where: Path, output: Path, *arguments: str) -> str:
    command = ["data", "prepare", name, "--input", str(where), "--output", str(output), *arguments]
    found = CliRunner().invoke(app, command, catch_exceptions=False).output
    return " ".join(found.split())


def words(output: Path, split: str) -> list[str]:
    rows = PreparedConfig(path=output)
    return [problem.messages[-1].content.split()[-1] for problem in rows.load(split)] if rows.has(split) else []


def test_evaluation_subsets_are_left_out_unless_they_are_named(deepcoder: Path, tmp_path: Path) -> None:
    told = typed("deepcoder", deepcoder, tmp_path / "out")
    assert "3 rows read" in told
    assert "not read: codeforces, lcbv5, evaluation sets; --subset codeforces prepares one as a test split" in told
    assert (len(words(tmp_path / "out", "train")), words(tmp_path / "out", "test")) == (3, [])


def test_a_named_evaluation_subset_is_a_test_split(deepcoder: Path, tmp_path: Path) -> None:
    typed("deepcoder", deepcoder, tmp_path / "out", "--subset", "lcbv5")
    assert (words(tmp_path / "out", "train"), len(words(tmp_path / "out", "test"))) == ([], 2)
    typed("deepcoder", deepcoder / "lcbv5", tmp_path / "other")
    assert (words(tmp_path / "other", "train"), len(words(tmp_path / "other", "test"))) == ([], 2)


def test_one_file_of_an_evaluation_subset_is_a_test_split(deepcoder: Path, tmp_path: Path) -> None:
    told = typed("deepcoder", deepcoder / "lcbv5" / "train-0.jsonl", tmp_path / "out")
    assert (words(tmp_path / "out", "train"), len(words(tmp_path / "out", "test"))) == ([], 1)
    assert "evaluate on them with dojang eval MODEL --data" in told
    assert "train on them" not in told


def test_missing_subset_is_refused(deepcoder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--subset prime: no such directory in .*subsets: codeforces, lcbv5, prime"):
        typed("deepcoder", deepcoder, tmp_path / "out", "--subset", "prime")
    with pytest.raises(DataError, match="it has no directories"):
        typed("deepcoder", deepcoder / "taco", tmp_path / "out", "--subset", "taco")
    only = deepcoder.parent / "only"
    only.mkdir()
    (deepcoder / "lcbv5").rename(only / "lcbv5")
    with pytest.raises(DataError, match="has only lcbv5; name one with --subset"):
        typed("deepcoder", only, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_codeforces_reads_its_own_subset_alone(deepcoder: Path, tmp_path: Path) -> None:
    assert "1 rows read" in typed("codeforces", deepcoder, tmp_path / "out")
    assert len(words(tmp_path / "out", "test")) == 1


def test_training_problems_of_the_test_split_are_dropped(deepcoder: Path, tmp_path: Path) -> None:
    told = typed("deepcoder", deepcoder, tmp_path / "out", "--subset", "primeintellect", "--subset", "codeforces")
    assert "1 dropped: it overlaps with a problem of the test split" in told
    assert "1 problems in" in told
    (kept,) = PreparedConfig(path=tmp_path / "out").load("train")
    assert "green" in kept.messages[-1].content
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (found,) = report["overlap"]
    assert (found["in"], found["share"] > 0.9, report["kept"]) == ("the test split", True, {"train": 1, "test": 1})


def test_other_evaluation_sets_are_compared_with(deepcoder: Path, tmp_path: Path) -> None:
    typed("codeforces", deepcoder, tmp_path / "eval")
    for number, place in enumerate((str(tmp_path / "eval"), f"codeforces={deepcoder}")):
        output = tmp_path / f"out{number}"
        told = typed("deepcoder", deepcoder, output, "--against", place)
        # Without spaces: a long path is broken over two lines.
        assert f"1 dropped: it overlaps with a problem of {place}".replace(" ", "") in told.replace(" ", "")
        assert len(words(output, "train")) == 2
    with pytest.raises(ConfigError, match="--against nowhere is not a directory of prepared rows"):
        typed("deepcoder", deepcoder, tmp_path / "out", "--against", "nowhere")


def test_overlap_can_be_kept_and_is_reported(deepcoder: Path, tmp_path: Path) -> None:
    both = ("--subset", "primeintellect", "--subset", "codeforces", "--keep-overlap")
    told = typed("deepcoder", deepcoder, tmp_path / "out", *both)
    assert "1 kept, though they overlap with held-out problems" in told
    assert len(words(tmp_path / "out", "train")) == 2


def test_an_interruption_while_dropping_changes_no_count(
    deepcoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    both = ("--subset", "primeintellect", "--subset", "codeforces")
    with monkeypatch.context() as patch:
        patch.setattr("dojang.data.prepare_rows._Progress._drop", interrupted)
        with pytest.raises(Interrupted):
            typed("deepcoder", deepcoder, tmp_path / "out", *both)
    with pytest.raises(DataError, match="is not finished"):
        words(tmp_path / "out", "train")
    told = typed("deepcoder", deepcoder, tmp_path / "out", *both)
    assert "1 dropped: it overlaps with a problem of the test split" in told
    assert len(words(tmp_path / "out", "train")) == 1
