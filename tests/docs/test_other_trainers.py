"""docs/from-trl.md and docs/from-verl.md: the settings and metrics of their tables exist, and their programs run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dojang.config.key_docs import keys
from dojang.config.recipe import load
from dojang.track.registry import ROWS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("from-trl.md", "from-verl.md")
KEY = re.compile(
    r"(?:model|data|task|judge|algo|rollout|train|loop|eval|checkpoint|track|runtime)(?:\.[a-z_]+)+|steps|epochs|seed"
)
NEEDS = {
    "rollout.engine.name=remote": "rollout.engine.url=[http://127.0.0.1:8000]",
    "data.name=prepared": "data.path=data",
    "task.rewards=": "task.name=reward_functions",
    "algo.advantage=gdpo": "algo.name=gdpo",
    "algo.use_bias_correction_kl=": "algo.kl_coef=0.01",
    "algo.corrections=": "algo.old_logprobs=trainer",
    "algo.old_logprobs=trainer": "algo.corrections=[{name: sequence_mis, cap: 3}]",
}
"""Settings that another one needs, which the row of a table does not repeat."""


def rows(page: str, heading: str) -> list[tuple[str, str]]:
    """Rows of the tables under a heading: the first and the last cell."""
    text = (DOCS / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert len(cells) > 3, heading
    return [(row[0].strip(), row[-1].strip()) for row in cells]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("heading", ["Rewards and data", "Batch sizes", "Settings", "What behaves differently"])
def test_settings_of_the_tables_exist_and_their_values_are_accepted(page: str, heading: str) -> None:
    known = {key.name for key in keys()}
    checked = 0
    for _, ours in rows(page, heading):
        for span in spans(ours):
            for setting in span.split(" "):
                if (found := KEY.match(setting)) and not setting.endswith(".parquet"):
                    assert found[0] in known, f"{page}: {setting}"
                    checked += 1
            if KEY.fullmatch(span.partition("=")[0]) and "=" in span:
                needed = [more for prefix, more in NEEDS.items() if span.startswith(prefix)]
                load("quickstart", [*needed, *re.split(r" (?=[a-z]+\.)", span)])
    assert checked > 2


@pytest.mark.parametrize("page", PAGES)
def test_metrics_of_the_tables_exist(page: str) -> None:
    known = {metric.name for row in ROWS for panel in row.panels for metric in panel.metrics}
    named = [each for _, ours in rows(page, "Metrics") for each in spans(ours) if "/" in each and "*" not in each]
    assert len(named) > 5
    assert set(named) <= known


PROGRAMS = {"from-trl.md": "python brief.py", "from-verl.md": "python rows.py\ndojang train sums-verl.yaml"}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_its_program_runs(page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text()
    for name, content in re.findall(r"^```\w+\n# ([\w.-]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content)
    for line in PROGRAMS[page].splitlines():
        assert page == "from-trl.md" or line in text
        program, *arguments = line.split()
        command = [sys.executable, *(["-m", "dojang"] if program == "dojang" else []), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("runs/*/checkpoints/best"))
