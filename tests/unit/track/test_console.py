import io

from rich.console import Console

from dojang.track.console import ConsoleTracker

STEP = {"critic/rewards/mean": 0.4321, "perf/tokens_per_s": 12345.6}


def test_plain_lines_where_there_is_no_terminal() -> None:
    output = io.StringIO()
    tracker = ConsoleTracker(Console(file=output, width=200), first=0, steps=4)
    tracker.metrics(0, {"val/test_score/sums": 0.25, "val/judge_errors": 0.0})
    tracker.metrics(1, STEP)
    tracker.close()
    lines = output.getvalue().splitlines()
    assert lines[0] == "step 0/4  held-out accuracy 25.0%"
    assert lines[1].startswith("step 1/4  reward 0.432  eval 25.0%  12,346 tok/s  ETA ")
    assert "\x1b" not in output.getvalue()


def test_a_bar_in_a_terminal() -> None:
    output = io.StringIO()
    tracker = ConsoleTracker(Console(file=output, width=120, force_terminal=True), first=2, steps=4)
    tracker.metrics(3, STEP)
    tracker.close()
    assert "3/4" in output.getvalue()
    assert "reward 0.432" in output.getvalue()
    assert output.getvalue().rstrip("\n").endswith("\x1b[?25h")  # the cursor is given back


def test_the_time_left_is_that_of_the_steps_left(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("dojang.track.console.time.monotonic", lambda: now[0])
    output = io.StringIO()
    tracker = ConsoleTracker(Console(file=output, width=200), first=10, steps=100)
    now[0] += 20  # for two steps
    tracker.metrics(12, STEP)
    assert "ETA 14:40" in output.getvalue()  # 88 steps of 10 s
    now[0] += 90 * 60
    tracker.metrics(13, STEP)
    assert "ETA 43:39:40" in output.getvalue()
