from pathlib import Path

from dojang.track.chart import draw_chart

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_chart_of_steps_and_scores(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "val/test_score/sums": 0.2},
        {"step": 1, "critic/rewards/mean": 0.1},
        {"step": 2, "critic/rewards/mean": 0.3},
        {"step": 2, "val/test_score/sums": 0.4},
    ]
    draw_chart(tmp_path / "full.png", rows, "a run")
    draw_chart(tmp_path / "start.png", rows[:1], "a run")
    full, start = (tmp_path / "full.png").read_bytes(), (tmp_path / "start.png").read_bytes()
    assert full.startswith(PNG)
    assert start.startswith(PNG)
    assert len(full) > len(start)  # the reward's line is in it
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full.png", "start.png"]
