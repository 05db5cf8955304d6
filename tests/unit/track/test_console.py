import io
import subprocess
import sys

import pytest
from rich.console import Console

from dojang.track.console import ConsoleTracker
from dojang.types import Outcome, Verdict

STEP = {"critic/rewards/mean": 0.4321, "perf/tokens_per_s": 12345.6, "timing_s/step": 10.0}
EVALUATION = {"val/accuracy": 0.25, "val/reward": 0.75, "val/accuracy/sums": 0.25, "timing_s/eval": 30.0}


def tracker(console: Console, **settings: int) -> ConsoleTracker:
    return ConsoleTracker(console, **{"first": 0, "steps": 4, "eval_every": 2, **settings})


@pytest.mark.parametrize("settings", [{}, {"force_terminal": True, "_environ": {"TERM": "dumb"}}])
def test_plain_lines_outside_a_terminal(settings: dict) -> None:
    output = io.StringIO()
    shown = tracker(Console(file=output, width=20, **settings))
    shown.metrics(0, EVALUATION)
    shown.metrics(1, STEP)
    shown.close()
    lines = output.getvalue().splitlines()
    assert lines[0] == "step 0/4  held-out accuracy 25.0%  reward 0.750"
    assert lines[1] == "step 1/4  reward 0.432  eval 25.0%  12,346 tok/s  ETA 1:30"
    assert "\x1b" not in output.getvalue()


def test_the_tester_s_reward_is_beside_the_coder_s() -> None:
    output = io.StringIO()
    tracker(Console(file=output)).metrics(1, {**STEP, "tester/critic/rewards/mean": 0.25})
    assert output.getvalue() == "step 1/4  reward 0.432  tester 0.250  12,346 tok/s  ETA 0:30\n"


@pytest.mark.parametrize("width", [60, 120])
def test_progress_bar_in_a_terminal(width: int) -> None:
    output = io.StringIO()
    shown = tracker(Console(file=output, width=width, force_terminal=True, _environ={"TERM": "xterm"}), first=2)
    assert output.getvalue() == ""  # a run that fails to start leaves the terminal alone
    shown.metrics(3, STEP)
    shown.close()
    assert "3/4" in output.getvalue()
    assert "reward 0.432" in output.getvalue()
    assert "ETA 0:10" in output.getvalue()
    assert output.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is given back


def test_eta_counts_remaining_steps_and_evaluations() -> None:
    output = io.StringIO()
    shown = tracker(Console(file=output, width=200), first=10, steps=100, eval_every=30)
    shown.metrics(11, STEP)
    assert "ETA 14:50" in output.getvalue()  # 89 steps of 10 s
    shown.metrics(30, EVALUATION)
    shown.metrics(31, STEP)
    assert "ETA 13:00" in output.getvalue()  # 69 steps, and evaluations of 30 s after 60, 90 and 100


def test_benchmarks_have_a_line_and_count_into_the_eta() -> None:
    output = io.StringIO()
    shown = ConsoleTracker(
        Console(file=output, width=200), first=0, steps=100, eval_every=50, benchmarks={"humaneval": 25}
    )
    shown.metrics(0, EVALUATION)
    shown.metrics(
        0, {"val/accuracy/humaneval": 0.125, "val/test_score/humaneval": -0.5, "timing_s/eval/humaneval": 60.0}
    )
    shown.metrics(1, STEP)
    lines = output.getvalue().splitlines()
    assert lines[1] == "step 0/100  humaneval accuracy 12.5%  reward -0.500"
    assert "eval 25.0%" in lines[2]
    assert "ETA 21:30" in lines[2]  # 99 steps of 10 s, 2 evaluations of 30 s, 4 of 60 s


def test_closed_pipe_does_not_end_the_run() -> None:
    script = """
import sys
from rich.console import Console
from dojang.track.console import ConsoleTracker
tracker = ConsoleTracker(Console(), first=0, steps=10**6, eval_every=10)
for step in range(1, 20_000):
    tracker.metrics(step, {"critic/rewards/mean": 0.5, "timing_s/step": 1.0})
sys.stderr.write("went on")
"""
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline().startswith("step 1/")
    writer.stdout.close()
    assert writer.stderr is not None
    assert writer.stderr.read() == "went on"
    assert writer.wait(timeout=60) == 0
    writer.stderr.close()


def evaluated(make_group) -> list:
    wrong = Verdict(Outcome.WRONG, 0.0, detail="the answer is\x1b[2J 2")
    right = make_group([1.0, 1.0], text="1\n2\n3\n4\n5\n#### [bold]2[/bold]\x07")
    return [right, make_group([0.0], text="well\n\r#### 3\u202e", verdict=wrong), make_group([0.0], text="later")]


def test_an_accepted_and_another_completion_have_a_line_each_in_a_log(make_group) -> None:
    output = io.StringIO()
    shown = tracker(Console(file=output, width=40), completions=2)
    shown.groups(2, "train", [make_group([1.0], text="not an evaluation")])
    shown.groups(2, "test", evaluated(make_group))
    assert output.getvalue() == ""
    shown.metrics(2, EVALUATION)
    shown.metrics(3, STEP)
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("step 2/4  held-out accuracy")
    assert lines[1] == "  accepted  sums/1: 1 2 3 4 5 #### [bold]2[/bold]\\x07"
    assert lines[2] == "  wrong  sums/1: well #### 3\\u202e (the answer is\\x1b[2J 2)"
    assert lines[3].startswith("step 3/4")
    assert len(lines) == 4


def test_completions_of_a_log_are_short(make_group) -> None:
    output = io.StringIO()
    shown = tracker(Console(file=output), completions=2)
    long = Verdict(Outcome.WRONG, 0.0, detail="why\n" * 10**5)
    shown.groups(0, "test", [make_group([0.0, 0.0, 0.0], text="x\n" * 10**6 + "#### 3", verdict=long)])
    shown.metrics(0, EVALUATION)
    lines = output.getvalue().splitlines()
    assert len(lines) == 3
    assert all(len(line) < 300 and "#### 3 (why" in line for line in lines[1:])


@pytest.mark.parametrize(("number", "outcomes"), [(0, ""), (1, "a"), (3, "awa"), (4, "awaw"), (9, "awaw")])
def test_the_number_of_completions_is_a_setting(make_group, number: int, outcomes: str) -> None:
    output = io.StringIO()
    shown = tracker(Console(file=output), completions=number)
    shown.groups(2, "test", evaluated(make_group))
    shown.groups(2, "test-humaneval", [make_group([1.0], text="of a benchmark")])
    shown.metrics(2, EVALUATION)
    assert "".join(line[2] for line in output.getvalue().splitlines()[1:]) == outcomes


def test_a_terminal_shows_the_last_lines_of_completions(make_group) -> None:
    output = io.StringIO()
    terminal = Console(file=output, width=120, force_terminal=True, _environ={"TERM": "xterm"}, color_system=None)
    shown = tracker(terminal, completions=2)
    shown.groups(2, "test", evaluated(make_group))
    shown.metrics(2, EVALUATION)
    shown.close()
    text = output.getvalue()
    assert "completions at step 2, held-out accuracy 25.0%\n" in text
    assert "  accepted  sums/1: what is 1+1?\n    │ ...3\n    │ 4\n    │ 5\n    │ #### [bold]2[/bold]\\x07\n" in text
    assert "    │ well\n    │ \\x0d#### 3\\u202e\n    the answer is\\x1b[2J 2\n" in text
    assert "\x07" not in text
    assert "\u202e" not in text
