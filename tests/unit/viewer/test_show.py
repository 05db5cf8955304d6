"""`dojang show` on real runs and on hostile text."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dojang
from dojang.commands import app
from dojang.core.errors import ConfigError, DojangError, RunDirError
from dojang.core.run_dir import RunDir
from rollout_files import row, write

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/bold red]\rstep 9  accepted\u202egnorw\x9b31m :skull: \u2028end"


def show(run: Path, *arguments: str, **environment: str) -> str:
    """Output of the command; raises its error."""
    result = CliRunner().invoke(app, ["show", str(run), *arguments], env={"COLUMNS": "100", **environment})
    if isinstance(result.exception, DojangError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def objects(run: Path, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in show(run, "--json", *arguments).splitlines()]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    few = {"eval": {"problems": 24, "every": 2}, "rollout": {"prompts_per_step": 2, "group_size": 8}}
    dojang.train("quickstart", steps=2, run_dir=run, **few)
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("steps: 3\n")
    write(tmp_path, "train", 1, [row(1, index) for index in range(3)])
    write(tmp_path, "train", 3, [row(3, index, role=("coder", "tester")[index % 2]) for index in range(4)])
    write(tmp_path, "test-human-eval", 25, [row(25, problem="HumanEval/0")])
    return tmp_path


def test_samples_of_the_last_step_are_shown(quickstart: Path) -> None:
    rows = pq.read_table(RunDir(quickstart).rollouts("train", 2)).to_pylist()
    output = show(quickstart)
    assert output.count("step 2  arithmetic/") == 5
    for each in rows[:5]:
        assert each["question"] in output
        assert all(f"│ {line}\n" in output for line in each["response"].split("\n"))
        assert each["detail"] in output
        parts = ", ".join(f"{name} {value:g}" for name, value in each["reward_parts"])
        length = f"{sum(each['mask'])} tokens"
        advantage = f"advantage {each['advantage']:+.3g}"
        assert f"{each['outcome']}  reward {each['reward']:g} ({parts})  {advantage}  {length}" in output
    assert "\x1b" not in output  # a pipe has no colours


def test_json_is_exact(quickstart: Path) -> None:
    rows = pq.read_table(RunDir(quickstart).rollouts("test", 0)).to_pylist()
    found = objects(quickstart, "--eval", "--step", "0", "--limit", "100")
    assert len(found) == 24
    for shown, each in zip(found, rows, strict=True):
        assert shown["length"] == sum(each["mask"])
        assert shown["reward_parts"] == dict(each["reward_parts"])
        same = set(shown) - {"length", "reward_parts"}
        assert {key: shown[key] for key in same} == {key: each[key] for key in same}


@pytest.mark.parametrize("name", ["reward", "length", "advantage"])
def test_samples_are_sorted(quickstart: Path, name: str) -> None:
    values = sorted(each[name] for each in objects(quickstart, "--limit", "99"))
    assert [each[name] for each in objects(quickstart, "--sort", name, "--limit", "3")] == values[:3]
    assert [each[name] for each in objects(quickstart, "--sort", f"-{name}", "--limit", "3")] == values[::-1][:3]


def test_samples_without_a_reward_come_last(run: Path) -> None:
    write(run, "train", 4, [row(4, 0, reward=None, outcome="judge_error"), row(4, 1, reward=0.5), row(4, 2, reward=-1)])
    assert [each["reward"] for each in objects(run, "--sort", "reward")] == [-1, 0.5, None]
    assert [each["reward"] for each in objects(run, "--sort", "-reward")] == [0.5, -1, None]
    assert "judge_error  advantage" in show(run, "--outcome", "judge_error")


def test_samples_are_filtered(run: Path) -> None:
    assert {each["outcome"] for each in objects(run, "--outcome", "wrong")} == {"wrong"}
    assert [each["index"] for each in objects(run, "--role", "tester")] == [1, 3]
    assert [each["step"] for each in objects(run, "--problem", "sums/2")] == [3]
    assert [each["step"] for each in objects(run, "--problem", "sums/3", "--role", "tester")] == [3]
    assert [each["problem"] for each in objects(run, "--benchmark", "human-eval")] == ["HumanEval/0"]


def test_a_problem_is_shown_at_the_last_step_that_has_it(run: Path) -> None:
    write(run, "train", 2, [row(2, problem="rare")])
    assert [each["step"] for each in objects(run, "--problem", "rare")] == [2]


def test_a_last_step_without_samples_is_passed_over(run: Path) -> None:
    write(run, "train", 4, [])
    RunDir(run).rollouts("train", 5).write_bytes(b"half")
    result = CliRunner().invoke(app, ["show", str(run), "--limit", "1"])
    assert result.stdout.startswith("step 3  sums/0  sample 0  coder  weights 3\n")
    assert result.stderr.startswith(f"note: {RunDir(run).rollouts('train', 5)} is damaged: ")


def test_texts_are_shortened_unless_all_is_wanted(run: Path) -> None:
    write(run, "train", 4, [row(4, response="start" + "x" * 10**6 + "finish", question="q\n" * 500)])
    output = show(run)
    assert len(output) < 5000
    assert "│ startxx" in output
    assert "xxfinish\n" in output
    assert "characters ...]" in output
    assert len(show(run, "--full")) > 10**6
    terminal = show(run, "--full", FORCE_COLOR="1", TERM="xterm")
    assert terminal.count("│ ") > 10**4
    assert max(map(len, terminal.splitlines())) < 150


@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "160"}])
def test_hostile_text_is_inert(run: Path, environment: dict[str, str]) -> None:
    bad = {"response": HOSTILE, "question": HOSTILE, "detail": HOSTILE, "problem": HOSTILE, "outcome": HOSTILE}
    bad |= {"reward_parts": [(HOSTILE, 1.0)], "finish": HOSTILE}
    bad["tests"] = [{"test": 0, "outcome": HOSTILE, "detail": HOSTILE, "output": HOSTILE, "errors": HOSTILE}]
    write(run, "train", 4, [row(4, role=HOSTILE, **bad)])
    write(run, "train", 5, [row(5, role=HOSTILE, **bad)])
    for arguments in ([], ["--full"], ["--diff", "4", "5"]):
        output = show(run, *arguments, **environment)
        for each in ("\x1b[2J", "\x1b]", "\x07", "\r", "\u202e", "\x9b", "\u2028"):
            assert each not in output, repr(each)
        assert "\\x1b[2J" in output
        assert "[bold red]x[/bold red]" in output
        assert ":skull:" in output
        assert not [line for line in output.splitlines() if line.startswith("step 9")]
    with pytest.raises(ConfigError, match="no samples of a problem 'x'") as error:
        show(run, "--problem", "x", "--step", "4")
    assert "\x1b" not in str(error.value)
    assert objects(run)[0]["response"] == HOSTILE
    assert show(run, "--json").isascii()


def test_failed_test_of_a_program_is_shown(run: Path) -> None:
    tests = [
        {"test": 0, "outcome": "accepted", "cpu_s": 0.1, "output": "never"},
        {"test": 1, "outcome": "wrong", "cpu_s": 0.25, "detail": "line 1: 4, not 5", "output": "4", "errors": "hm"},
    ]
    write(run, "train", 4, [row(4, outcome="wrong", passed=1, total=2, tests=tests)])
    output = show(run)
    assert "wrong 1/2 tests  reward" in output
    assert "test 1: wrong, 0.25 s\n│ line 1: 4, not 5\n│ 4\n│ hm\n" in output
    assert "never" not in output


def test_difference_of_two_evaluations(quickstart: Path) -> None:
    then, now = (pq.read_table(RunDir(quickstart).rollouts("test", step)).to_pylist() for step in (0, 2))
    found = {each["problem"]: each["outcome"] for each in then}
    pairs = [(found[each["problem"]], each["outcome"]) for each in now]
    output = show(quickstart, "--eval", "--diff", "0", "2", "--limit", "1")
    assert output.startswith("step 0 -> step 2: 24 samples of the same problems\n")
    for old, new in set(pairs):
        count = pairs.count((old, new))
        assert f"{count:>7}  {count / 24:>6.1%}  {old} -> {new}\n" in output
    assert "advantage" not in output


def test_difference_shows_changes_first_side_by_side(run: Path) -> None:
    write(run, "test", 0, [row(0, 0), row(0, 1, response="five"), row(0, 2), row(0, 7)])
    later = row(9, 1, outcome="accepted", response="four")
    write(run, "test", 9, [row(9, 0), later, row(9, 2)])
    output = show(run, "--eval", "--diff", "0", "9", "--limit", "1")
    assert "2   66.7%  accepted -> accepted" in output
    assert "1   33.3%  wrong -> accepted" in output
    assert "without a partner: 1 at 0, 0 at 9" in output
    assert output.index("sums/1  wrong -> accepted") < output.index("five") < output.index("four")
    assert "sums/0" not in output
    wide = show(run, "--eval", "--diff", "0", "9", "--limit", "1", FORCE_COLOR="1", TERM="xterm", COLUMNS="120")
    assert [line for line in wide.splitlines() if "│ five" in line and "│ four" in line]
    found = objects(run, "--eval", "--diff", "0", "9", "--outcome", "wrong")
    assert [(each["then"]["response"], each["now"]["response"]) for each in found] == [("five", "four")]
    assert [each["now"]["problem"] for each in objects(run, "--eval", "--diff", "0", "9", "--sort", "-reward")] == [
        "sums/0",
        "sums/2",
        "sums/1",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--step", "2"], r"step 2 has no samples of training; the nearest that have are 1, 3 \(2 steps from 1 to 3\)"),
        (["--outcome", "wrnog"], r"did you mean wrong\?\); there are accepted \(2\), wrong \(2\)"),
        (["--outcome", "time_limit"], r"outcome 'time_limit'; there are accepted \(2\), wrong \(2\)"),
        (["--role", "codr"], r"role 'codr' \(did you mean coder\?\); there are coder \(2\), tester \(2\)"),
        (["--problem", "sum/2"], r"no samples of a problem 'sum/2'; there are sums/2"),
        (["--problem", "sums/3", "--step", "1"], r"step 1 of training has no samples of a problem 'sums/3'"),
        (["--role", "tester", "--outcome", "accepted"], "has all that is asked for; leave out a filter"),
        (["--benchmark", "mbpp"], "no samples of a benchmark 'mbpp'; there are human-eval"),
        (["--diff", "1", "2"], "step 2 has no samples of training"),
        (["--diff", "1", "3", "--outcome", "time_limit"], "no sample of both steps"),
    ],
)
def test_what_is_not_there_is_an_error_that_names_what_is(run: Path, arguments: list[str], says: str) -> None:
    write(run, "train", 1, [row(1, index, role="coder") for index in range(3)])
    with pytest.raises(ConfigError, match=says):
        show(run, *arguments)


def test_steps_without_a_common_problem_are_an_error(run: Path) -> None:
    write(run, "train", 4, [row(4, problem="other")])
    with pytest.raises(ConfigError, match=r"steps 3 and 4 have no problem in common; evaluations .*: add --eval"):
        show(run, "--diff", "3", "4")


def test_a_run_without_samples_is_an_error(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(RunDirError, match=r"no samples of evaluations yet; there are training \(without --eval\), --b"):
        show(run, "--eval")
    write(run, "test", 0, [row(0)])
    with pytest.raises(ConfigError, match=r"step 0 has no samples of training.*; evaluations do: add --eval"):
        show(run, "--step", "0")
    empty = tmp_path_factory.mktemp("empty")
    (empty / "config.yaml").write_text("steps: 1\n")
    with pytest.raises(RunDirError, match="no samples of training yet; there are none at all"):
        show(empty)
    write(empty, "train", 1, []).write_bytes(b"damaged")
    with pytest.raises(
        RunDirError, match=r"no step of .* has samples that can be read; .*train-000001.parquet is damaged"
    ):
        show(empty)
    with pytest.raises(RunDirError, match="does not exist"):
        show(empty / "nowhere")


def test_it_prints_to_a_pipe_of_few_characters_and_loads_no_torch(run: Path) -> None:
    code = """
import sys
from dojang.commands import app
app(standalone_mode=False)
assert not {"torch", "transformers"} & set(sys.modules)
"""
    write(run, "train", 4, [row(4, response="漢字 é")])
    command = [sys.executable, "-c", code, "show", str(run)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "\\u6f22\\u5b57 \\xe9" in done.stdout
