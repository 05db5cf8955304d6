"""The chart of accuracies: what is drawn can be read."""

from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dojang.evaluation.report import plot_accuracy
from dojang.loop.scores import Estimate


def estimate(value: float) -> Estimate:
    return Estimate(value, max(0.0, value - 0.02), min(1.0, value + 0.02), 256, "Clopper-Pearson, n = problems")


@pytest.mark.parametrize("shots", [None, 0])
def test_no_tick_is_above_all_answers_and_labels_fit(
    shots: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, dpi: figures.append(self))
    far = "trained: ../../../a/very/long/path/to/the/results/of/a/run/python-tool-smollm2/checkpoints/last"
    former = far.replace("/last", "/step-000010")
    points = [(label, "arithmetic", shots, estimate(value)) for label, value in ((former, 0.14), (far, 1.0))]
    plot_accuracy(tmp_path / "chart.png", points)
    (figure,) = figures
    FigureCanvasAgg(figure).draw()
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert max(tick for tick in axes.get_yticks() if low <= tick <= high) <= 1
    (legend,) = figure.legends
    assert [text.get_text().replace("\n", "") for text in legend.get_texts()] == [former, far]
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1
    assert box.y0 >= axes.get_window_extent().y1


def test_labels_are_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, dpi: figures.append(self))
    labels = ["_old/checkpoints/last", "runs/$lr_{$/last"]
    points = [(label, data, None, estimate(0.5)) for label in labels for data in ("_data", "$x^^$")]
    plot_accuracy(tmp_path / "chart.png", points)
    (figure,) = figures
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert [text.get_text().strip() for text in legend.get_texts()] == labels
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["_data", "$x^^$"]
