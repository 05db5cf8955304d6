from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dojang.track.chart import draw_chart, plot

PNG = b"\x89PNG\r\n\x1a\n"


def test_chart_is_drawn(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "val/accuracy/sums": 0.2},
        {"step": 1, "critic/rewards/mean": 0.1},
        {"step": 2, "critic/rewards/mean": 0.3},
        {"step": 2, "val/accuracy/sums": 0.4},
    ]
    draw_chart(tmp_path / "full.png", rows, "a run")
    draw_chart(tmp_path / "start.png", rows[:1], "a run")
    full, start = (tmp_path / "full.png").read_bytes(), (tmp_path / "start.png").read_bytes()
    assert full.startswith(PNG)
    assert start.startswith(PNG)
    assert len(full) > len(start)  # the reward's line is in it
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.png", "start.png"]


def test_chart_draws_reward_and_accuracy_of_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, format: (figures.append(self), path.write_bytes(PNG)))
    held_out = {"val/accuracy": 0.5, "val/accuracy/a": 1.0, "val/accuracy/b": 0.0}
    rewards = {"val/reward": -0.25, "val/test_score/a": 0.5, "val/test_score/b": -1.0}
    draw_chart(tmp_path / "run.png", [{"step": 0, **held_out, **rewards}, {"step": 1, "critic/rewards/mean": 0.1}], "")
    (figure,) = figures
    drawn = [{line.get_label(): list(line.get_ydata()) for line in axes.lines} for axes in figure.axes]
    assert drawn == [
        {"training": [0.1], "held-out, a": [0.5], "held-out, b": [-1.0]},
        {"held-out, a": [1.0], "held-out, b": [0.0]},
    ]


def test_chart_draws_the_rewards_of_two_models() -> None:
    coder = ("critic/rewards/mean", "critic/rewards/turn_0/mean", "critic/rewards/turn_1/mean")
    rows = [
        {"step": 1, **dict.fromkeys(coder, 0.1), "tester/critic/rewards/mean": 0.2},
        {"step": 2, **dict(zip(coder, (0.2, 0.3, -0.5), strict=True)), "tester/critic/rewards/mean": 0.6},
    ]
    rewards, _ = plot(rows, "a run").axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in rewards.lines}
    assert drawn == {"training, coder, first turn": [0.1, 0.3], "training, tester": [0.2, 0.6]}


def test_ticks_of_close_accuracies_have_different_labels() -> None:
    figure = plot([{"step": 0, "val/accuracy/mbpp": 0.508}, {"step": 50, "val/accuracy/mbpp": 0.539}], "a run")
    FigureCanvasAgg(figure).draw()
    _, accuracies = figure.axes
    labels = [label.get_text() for label in accuracies.get_yticklabels()]
    assert len(set(labels)) == len(labels) > 3


@pytest.mark.parametrize("values", [(1.0, 1.0), (0.0, 0.0), (0.0, 1.0), (0.004, 0.006), (0.99, 1.0)])
def test_no_accuracy_is_outside_0_and_1(values: tuple[float, float]) -> None:
    figure = plot([{"step": step, "val/accuracy/sums": value} for step, value in enumerate(values)], "a run")
    FigureCanvasAgg(figure).draw()
    _, accuracies = figure.axes
    low, high = accuracies.get_ylim()
    shown = [tick for tick in accuracies.get_yticks() if low <= tick <= high]
    assert len(shown) > 1
    assert min(shown) >= -1e-9
    assert max(shown) <= 1 + 1e-9
    assert low < min(values)
    assert max(values) < high


def test_names_are_no_formulas() -> None:
    rows = [{"step": 0, "val/accuracy/$x^^$": 0.5, "val/accuracy/$a_{$": 0.5}, {"step": 1, "val/reward": 0.1}]
    FigureCanvasAgg(plot(rows, r"run $\frac{$ x")).draw()
