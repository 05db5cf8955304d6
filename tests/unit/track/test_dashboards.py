"""Files of `dojang dashboards`. tests/prometheus loads them in Prometheus."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dojang.commands import app
from dojang.core.errors import ConfigError
from dojang.track.alerts import ALERTS
from dojang.track.dashboards import write
from dojang.track.grafana import dashboard, selector
from dojang.track.registry import ROWS, find


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_every_metric_is_in_its_panel() -> None:
    rows: dict[str, list[str]] = {}
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            rows[panel["title"]] = []
        else:
            rows[next(reversed(rows))] += [target["expr"] for target in panel["targets"]]
    assert list(rows) == ["Overview", *(row.title for row in ROWS)]
    for row in ROWS:
        assert rows[row.title] == [selector(metric) for panel in row.panels for metric in panel.metrics]


def test_selectors_choose_families_and_roles() -> None:
    def of(name: str) -> str:
        metric = find(name)
        assert metric is not None
        return selector(metric)

    assert of("timing_s/step") == 'dojang_timing_s_step{run=~"$run"}'
    assert of("actor/lr") == '{__name__=~"dojang_(tester_)?actor_lr",run=~"$run"}'
    assert of("val/test_score/x") == '{__name__=~"dojang_val_test_score_.+",run=~"$run"}'
    assert of("critic/rewards/x/mean") == '{__name__=~"dojang_(tester_)?critic_rewards_.+_mean",run=~"$run"}'


def test_panels_do_not_overlap() -> None:
    taken = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_panels_use_the_selected_datasource_and_describe_metrics() -> None:
    names = [variable["name"] for variable in dashboard()["templating"]["list"]]
    assert names == ["datasource", "run"]
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all("$run" in target["expr"] for target in panel["targets"])
        assert panel["type"] == "stat" or panel["description"]


def test_alerts_have_meaning_and_action() -> None:
    for alert in ALERTS:
        assert alert.severity in ("critical", "warning")
        assert alert.summary.endswith(".")
        assert len(alert.meaning) > 40
        assert len(alert.todo) > 40


def test_files_are_written_and_replaced(tmp_path: Path) -> None:
    for _ in range(2):
        result = CliRunner().invoke(app, ["dashboards", str(tmp_path / "out"), "--target", "node-1:9500"])
        assert result.exit_code == 0, result.output
    assert "prometheus --config.file=" in result.output
    files = sorted(str(path.relative_to(tmp_path / "out")) for path in tmp_path.rglob("*") if path.is_file())
    assert files == [
        "grafana/dojang.json",
        "grafana/provisioning/dashboards/dojang.yml",
        "grafana/provisioning/datasources/dojang.yml",
        "prometheus/dojang.rules.yml",
        "prometheus/prometheus.yml",
    ]
    grafana, prometheus = tmp_path / "out" / "grafana", tmp_path / "out" / "prometheus"
    assert json.loads((grafana / "dojang.json").read_text()) == dashboard()
    provider = yaml.safe_load((grafana / "provisioning/dashboards/dojang.yml").read_text())["providers"][0]
    assert provider["options"]["path"] == str(grafana)
    asked = yaml.safe_load((prometheus / "prometheus.yml").read_text())["scrape_configs"][0]
    assert asked["static_configs"] == [{"targets": ["node-1:9500"]}]
    rules = yaml.safe_load((prometheus / "dojang.rules.yml").read_text())["groups"][0]["rules"]
    assert [(rule["alert"], rule["expr"]) for rule in rules] == [(alert.name, alert.expr) for alert in ALERTS]


def test_invalid_arguments_are_refused_before_writing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file; give a directory"):
        write(tmp_path / "file", ["127.0.0.1:9464"])
    for wrong in ("9464", "host", "host:", ":9464", "http://host:port", "host:99999", "host:0"):
        with pytest.raises(ConfigError, match="is not an exporter's address"):
            write(tmp_path / "out", [wrong])
    assert not (tmp_path / "out").exists()
