"""`dojang data audit` on generated rows, with the real judge."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from audit_fakes import FakeJudge, sums
from typer.testing import CliRunner

from dojang.audit import command
from dojang.audit.options import AuditOptions
from dojang.commands import app
from dojang.core.errors import ConfigError, DataError, DojangError, Interrupted
from dojang.data.prepared import PreparedConfig
from dojang.judge.config import JudgeConfig
from dojang.programs import IoTest, Judgement, Submission
from dojang.types import Outcome

HUMANEVAL = {
    "task_id": "HumanEval/0",
    "prompt": "from typing import List\n\n\ndef double(values: List[int]) -> List[int]:\n    ",
    "canonical_solution": "return [2 * each for each in values]\n",
    "test": "def check(candidate):\n    assert candidate([1]) == [2]\n    assert candidate([]) == []\n"
    "    assert candidate([3, 4]) == [6, 8]\n    assert candidate([0]) == [0]\n    assert candidate([-1]) == [-2]\n",
    "entry_point": "double",
}
BROKEN = {**HUMANEVAL, "task_id": "HumanEval/1", "canonical_solution": "return values\n"}
LONG = "a farmer sells nine crates of pears at the market and keeps every third one of the crates for his sisters"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["data", "audit", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def report(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return told


def written(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepared(folder: Path, split: str, *rows: tuple[str, str, Any], ability: str = "code") -> Path:
    """Writes rows of (id, statement, ground truth), with an unrelated column."""
    folder.mkdir(exist_ok=True)
    table = [
        {
            "data_source": "made_up",
            "prompt": [{"role": "user", "content": statement}],
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": json.dumps(truth)},
            "extra_info": {"id": name, "note": f"of {name}"},
        }
        for name, statement, truth in rows
    ]
    pq.write_table(pa.Table.from_pylist(table), folder / f"{split}.parquet")
    return folder


def test_audits_a_published_dataset(tmp_path: Path) -> None:
    rows = written(tmp_path / "in" / "HumanEval.jsonl", HUMANEVAL, BROKEN)
    told = run("humaneval", "--input", rows, "--output", tmp_path / "out")
    assert "1/2 problems whose known-good answers get full marks (1/2 answers)" in told
    assert "1 refused a known-good answer does not get full marks" in told
    found = report(tmp_path / "out")
    assert (found["complete"], found["problems"], found["judge_errors"]) == (True, 2, 0)
    assert found["findings"] == {"refused": 1}
    first, second = found["audited"]
    assert first["findings"] == []
    assert [each["kind"] for each in first["answers"]][:3] == ["known-good", "again", "mutated"]
    assert {each["outcome"] for each in first["answers"][2:]} <= {"wrong", "runtime_error"}
    assert second["findings"][0]["name"] == "refused"


def test_rows_without_solutions_are_audited(tmp_path: Path) -> None:
    row = {key: value for key, value in HUMANEVAL.items() if key != "canonical_solution"}
    rows = written(tmp_path / "HumanEval.jsonl", row)
    assert "1 problems without known-good answers" in run("humaneval", "--input", rows, "--output", tmp_path / "out")


def test_strict_exits_with_1(tmp_path: Path) -> None:
    good = written(tmp_path / "good.jsonl", HUMANEVAL)
    bad = written(tmp_path / "bad.jsonl", BROKEN)
    run("humaneval", "--input", good, "--strict", "--output", tmp_path / "1")
    run("humaneval", "--input", bad, "--strict", "--output", tmp_path / "2", code=command.DISAGREES)
    run("humaneval", "--input", bad, "--output", tmp_path / "3")


def test_clean_prepared_rows_keep_their_columns(tmp_path: Path) -> None:
    folder = prepared(
        tmp_path / "rows",
        "train",
        ("good", "Add them.", sums()),
        ("several", "Find any two numbers.", sums()),
        ("few", "Add them, too.", sums(2)),
    )
    prepared(folder, "test", ("held out", "Add these.", sums()))
    told = run(folder, "--output", tmp_path / "out", "--keep", tmp_path / "kept")
    assert "4 problems without known-good answers" in told
    assert "3 of 4 problems kept" in told
    kept = PreparedConfig(path=tmp_path / "kept")
    assert [each.id for each in kept.load("train")] == ["good", "few"]
    assert [each.id for each in kept.load("test")] == ["held out"]
    assert pq.read_table(tmp_path / "kept" / "train.parquet").to_pylist()[1]["extra_info"]["note"] == "of few"
    left = json.loads((tmp_path / "kept" / "left_out.json").read_text())
    assert left["left_out"] == {"several_answers": 1}
    assert [each["id"] for each in left["problems"]] == ["several"]
    run(folder, "--output", tmp_path / "2", "--keep", tmp_path / "kept2", "--exclude", "few_tests", "--split", "train")
    kept = PreparedConfig(path=tmp_path / "kept2")
    assert [each.id for each in kept.load("train")] == ["good", "several"]


def test_json_lines_are_filtered(tmp_path: Path) -> None:
    rows = prepared(tmp_path / "rows", "train", ("good", "Add them.", sums()), ("several", "Find any two.", sums()))
    table = pq.read_table(rows / "train.parquet").to_pylist()
    written(tmp_path / "lines" / "train.jsonl", *table)
    run(tmp_path / "lines", "--output", tmp_path / "out", "--keep", tmp_path / "kept")
    assert [each.id for each in PreparedConfig(path=tmp_path / "kept").load("train")] == ["good"]
    assert json.loads((tmp_path / "kept" / "train.jsonl").read_text()) == table[0]


def test_solutions_of_prepared_rows_are_found(tmp_path: Path) -> None:
    rows = written(tmp_path / "raw" / "HumanEval.jsonl", HUMANEVAL)
    CliRunner().invoke(app, ["data", "prepare", "humaneval", "--input", str(rows), "--output", str(tmp_path / "rows")])
    assert "1 problems without known-good answers" in run(tmp_path / "rows", "--output", tmp_path / "1")
    told = run(tmp_path / "rows", "--input", rows, "--output", tmp_path / "2", "--keep", tmp_path / "kept")
    assert "1/1 problems whose known-good answers get full marks" in told
    assert len(PreparedConfig(path=tmp_path / "kept").load("test")) == 1


def test_clean_published_rows_are_written_as_prepared_rows(tmp_path: Path) -> None:
    rows = written(tmp_path / "HumanEval.jsonl", HUMANEVAL, BROKEN)
    run("humaneval", "--input", rows, "--output", tmp_path / "out", "--keep", tmp_path / "kept")
    (kept,) = PreparedConfig(path=tmp_path / "kept").load("test")
    assert kept.id == "HumanEval/0"
    assert "canonical" not in str(kept)


def test_contamination_is_found(tmp_path: Path) -> None:
    train = [(f"t{at}", f"word{at} something of its own, number {at}", "1") for at in range(3)]
    folder = prepared(tmp_path / "a", "train", *train, ("copy", f"So: {LONG}?", "1"), ability="math")
    prepared(folder, "test", ("held out", LONG, "1"), ability="math")
    run(folder, "--task", "answer_line", "--against", folder, "--output", tmp_path / "out")
    found = {each["id"]: each for each in report(tmp_path / "out")["audited"]}
    assert found["copy"]["overlap"] == {"id": "held out", "share": 1.0}
    assert [each["name"] for each in found["copy"]["findings"]] == ["contaminated"]
    assert all(found[name]["overlap"] is None for name in ("t0", "t1", "held out")), "not compared with itself"
    run(folder, "--task", "answer_line", "--against", folder, "--ngram", 40, "--output", tmp_path / "whole")
    assert report(tmp_path / "whole")["findings"] == {"contaminated": 1}, "a short text is found whole"


def test_audits_arithmetic(tmp_path: Path) -> None:
    told = run("arithmetic", "--problems", 5, "--output", tmp_path / "out")
    assert "5/5 problems whose known-good answers get full marks (5/5 answers)" in told
    found = report(tmp_path / "out")
    assert found["perturbed"]["answers"] == found["perturbed"]["refused"] > 20


def test_audits_generated_functions(tmp_path: Path) -> None:
    found = run("functions", "--problems", 4, "--output", tmp_path / "out", "task.max_tests=5", "judge.workers=1")
    assert "4 problems without known-good answers" in found
    told = report(tmp_path / "out")
    assert told["task"]["max_tests"] == 5
    assert "trivial" not in told["findings"]


def test_audits_custom_rows(tmp_path: Path) -> None:
    rows = written(tmp_path / "rows.jsonl", *({"question": f"{at} + {at}?", "answer": str(2 * at)} for at in range(30)))
    told = run("files", f"data.train={rows}", "--task", "answer_line", "--output", tmp_path / "out")
    assert "30/30 problems whose known-good answers get full marks" in told


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ([__file__], ConfigError, f"is a file; audit its rows with `dojang data audit files data.train={__file__}"),
        (["nonsense"], ConfigError, "neither a directory of prepared rows nor a dataset; known: code-contests"),
        (["humaneval"], ConfigError, "give --input PLACE"),
        (["files", "data.train=x.jsonl"], ConfigError, "files has no default task"),
        (["arithmetic", "steps=3"], ConfigError, "begin with data., task. or judge."),
        (["arithmetic", "task.nonsense=3"], ConfigError, "no such key"),
        (["arithmetic", "--split", "dev"], ConfigError, "is not one of train, validation, test"),
        (["arithmetic", "--exclude", "slow,nonsense"], ConfigError, "--exclude nonsense: findings are unusable"),
        (["arithmetic", "--keep", "kept", "--problems", "3"], ConfigError, "leave out --problems"),
        (["arithmetic", "--split", "validation"], DataError, "no problems in the split validation"),
        (["arithmetic", "--task", "custom", "task.make=a:b"], ConfigError, "no such key"),
        (["arithmetic", "--task", "custom", "task.make_with=a:b"], ConfigError, "custom cannot be audited"),
        (["arithmetic", "--task", "keywords", "task.required=[a]"], ConfigError, "keywords cannot be audited"),
        (["arithmetic", "--task", "exact_match"], ConfigError, "exact_match cannot be audited"),
        (["arithmetic", "--against", "mbpp"], ConfigError, "give --against mbpp=PLACE"),
        (["."], DataError, "has no rows of problems"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], error: type[DojangError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        run(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_unreadable_rows_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_text("no rows at all")
    with pytest.raises(DataError, match=r"train.parquet cannot be read: "):
        run(tmp_path)
    pq.write_table(pa.table({"ability": pa.array([], pa.string())}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="has no rows"):
        run(tmp_path)
    pq.write_table(pa.table({"prompt": ["?"]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match="has no column ability"):
        run(tmp_path)


def test_existing_output_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("something")
    with pytest.raises(ConfigError, match="is not empty"):
        run("arithmetic", "--output", tmp_path)
    with pytest.raises(ConfigError, match=r"--keep .* is not empty"):
        run("arithmetic", "--output", tmp_path / "out", "--keep", tmp_path)


def test_unwritable_output_is_refused_before_judging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("judged for nothing")

    monkeypatch.setattr(JudgeConfig, "make", never)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/out cannot be written: Not a directory"):
        run("arithmetic", "--output", tmp_path / "file" / "out")
    with pytest.raises(DataError, match=r"file/kept cannot be written: Not a directory"):
        run("arithmetic", "--output", tmp_path / "out", "--keep", tmp_path / "file" / "kept")


def test_concurrent_audits_write_separate_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    begin = command._run

    async def meanwhile(*arguments: Any) -> None:
        if not (tmp_path / "audits" / "arithmetic-2").exists():
            await asyncio.to_thread(command._claimed, "arithmetic", AuditOptions())
        await begin(*arguments)

    monkeypatch.setattr(command, "_run", meanwhile)
    run("arithmetic", "--problems", 1)
    assert report(tmp_path / "audits" / "arithmetic-1")["complete"]
    assert not list((tmp_path / "audits" / "arithmetic-2").iterdir())


def test_against_accepts_a_folder_with_an_equals_sign(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "a=b", "test", ("one", LONG, "1"), ability="math")
    run("arithmetic", "--problems", 1, "--against", folder, "--output", tmp_path / "out")
    assert report(tmp_path / "out")["how"]["against"] == str(folder)


def test_default_output_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run("arithmetic", "--problems", 1)
    run("arithmetic", "--problems", 1)
    assert {each.name for each in (tmp_path / "audits").iterdir()} == {"arithmetic-1", "arithmetic-2"}


def test_ctrl_c_writes_findings_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(FakeJudge):
        async def judge(self, submission: Submission) -> Judgement:
            if submission.test_suite.tests[0] == IoTest("wait", "wait"):
                while len(self.seen) < 2:  # until the other problem is done
                    await asyncio.sleep(0.01)
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(60)
            return await super().judge(submission)

        async def close(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)  # again, by somebody impatient
            await asyncio.sleep(0.05)
            closed.append(True)

    async def check(*_: object) -> None:
        pass

    closed: list[bool] = []
    judge = Stuck(lambda submission, _: [Outcome.WRONG] * len(submission.test_suite.tests))
    monkeypatch.setattr(JudgeConfig, "make", lambda *_: judge)
    monkeypatch.setattr(JudgeConfig, "check", check)
    stuck = {"private": [{"input": "wait", "output": "wait"}], "language": "python3"}
    folder = prepared(tmp_path / "rows", "train", ("quick", "Add them.", sums()), ("stuck", "Wait.", stuck))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background, tests may ignore it
    try:
        with pytest.raises(Interrupted, match="interrupted after 1 of 2 problems; findings so far are in"):
            run(folder, "--output", tmp_path / "out")
    finally:
        signal.signal(signal.SIGINT, before)
    told = report(tmp_path / "out")
    assert not told["complete"]
    assert [each["id"] for each in told["audited"]] == ["quick"]
    assert closed


@pytest.mark.slow
def test_audits_cpp_programs(tmp_path: Path) -> None:
    program = "#include <iostream>\nint main() {{ int a, b; std::cin >> a >> b; std::cout << a {} b << '\\n'; }}\n"
    tests = sums()["private"]
    row = {
        "name": "1_A. Sum",
        "description": "Read two numbers from standard input, and print the sum of both of them.",
        "cf_rating": 800,
        "public_tests": {"input": ["1 2"], "output": ["3"]},
        "private_tests": {key: [test[key] for test in tests] for key in ("input", "output")},
        "generated_tests": {"input": [], "output": []},
        "time_limit": {"seconds": 1, "nanos": 0},
        "memory_limit_bytes": 256 * 10**6,
        "solutions": {"language": [2, 3], "solution": [program.format("+"), "print(1)"]},
        "incorrect_solutions": {"language": [2], "solution": [program.format("-")]},
    }
    rows = written(tmp_path / "train.jsonl", row)
    told = run("code-contests", "--input", rows, "--output", tmp_path / "out")
    assert "1/1 problems whose known-good answers get full marks (1/1 answers)" in told
    assert "1/1 programs that the data call wrong refused" in told
    found = report(tmp_path / "out")
    assert found["findings"] == {}
    kinds = [each["kind"] for each in found["audited"][0]["answers"]]
    assert kinds == ["known-good", "again", "called wrong", "mutated"]
    assert found["mutated"] == {"answers": 1, "refused": 1}
