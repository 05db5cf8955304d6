"""Prometheus understands what `dojang dashboards` writes: its configuration, its rules, and every query of a panel."""

import json
import subprocess
from pathlib import Path

import yaml

from dojang.track.alerts import ALERTS


def promtool(tools: Path, *arguments: str) -> str:
    result = subprocess.run([str(tools / "promtool"), *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_configuration_and_its_rules_are_right(tools: Path, written: Path) -> None:
    said = promtool(tools, "check", "config", str(written / "prometheus" / "prometheus.yml"))
    assert f"{len(ALERTS)} rules found" in said


def test_every_query_of_the_dashboard_can_be_read(tools: Path, written: Path, tmp_path: Path) -> None:
    panels = json.loads((written / "grafana" / "dojang.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    rules = [
        {"record": f"panel:{at}", "expr": query.replace("$run", "run-1|run-2")} for at, query in enumerate(queries)
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool(tools, "check", "rules", str(path))
    assert len(queries) > 40
