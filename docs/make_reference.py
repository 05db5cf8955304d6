"""Writes docs/configuration.md from the settings' own docstrings, and docs/metrics.md from the registry of figures.
`--check` only says whether they are up to date."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from dojang.config.key_docs import keys
from dojang.track.alerts import ALERTS
from dojang.track.registry import GAUGES, ROWS, gauge_pattern

CONFIGURATION = """\
# Configuration

Every setting, as it is written in a recipe (`train: {lr: 1e-5}`) or on the command line (`train.lr=1e-5`). This page is
made from the settings' own docstrings by `make docs`; `dojang train --keys` prints the same. A section that is chosen
by its `name` has further settings for each choice.
"""

METRICS = """\
# Metrics

Every figure of `metrics.jsonl`, by the rows and panels of the [dashboard](dashboards.md), with its name in Prometheus.
This page is made from `src/dojang/track/registry.py` by `make docs`. A training step and an evaluation each add a line
to the file; a figure that does not apply is not in it.

- What is in angle brackets stands for a name of the run's own: a data source, a part of the reward, an outcome.
- With [two models](workflows.md), what the tester wrote and learned is there as `tester/...`: `critic/`, `actor/`,
  `response_length/`, `groups/` and `judge/`, which are the coder's otherwise.
- An algorithm of your own (`algo.name=custom`) may add others."""

GAUGES_INTRODUCTION = """
## What exporters add

| in Prometheus | meaning |
|---|---|"""

ALERTS_INTRODUCTION = """
## Alerts

Those of [`dojang dashboards`](dashboards.md). Each must hold for the time given.

| alert | for | severity | meaning | what to do |
|---|---|---|---|---|"""


def configuration() -> Iterator[str]:
    yield CONFIGURATION
    heading = None
    for key in keys():
        section = key.only or key.name.rpartition(".")[0] or "run"
        if section != heading:
            heading = section
            yield f"\n## {heading}\n\n| key | type | default | |\n|---|---|---|---|"
        kind = key.kind.replace("|", "\\|")
        yield f"| `{key.name}` | {kind} | {key.default} | {' '.join(key.help.split())} |"


def metrics() -> Iterator[str]:
    yield METRICS
    for row in ROWS:
        yield f"\n## {row.title}\n\n| panel | name | unit | meaning | in Prometheus |\n|---|---|---|---|---|"
        for panel in row.panels:
            for figure in panel.figures:
                name = re.sub(r"\(.*\)\?", "", gauge_pattern(figure)).replace(".+", "*")  # roles are explained above
                yield f"| {panel.title} | `{figure.name}` | {figure.unit} | {figure.meaning} | `{name}` |"
    yield GAUGES_INTRODUCTION
    yield from (f"| `{name}` | {meaning} |" for name, meaning in GAUGES.items())
    yield ALERTS_INTRODUCTION
    for alert in ALERTS:
        yield f"| `{alert.name}` | {alert.wait} | {alert.severity} | {alert.meaning} | {alert.todo} |"


PAGES = {"configuration.md": configuration, "metrics.md": metrics}


def main() -> int:
    stale = 0
    for name, lines in PAGES.items():
        path, page = Path(__file__).parent / name, "\n".join(lines()) + "\n"
        if "--check" in sys.argv:
            stale += not path.exists() or path.read_text() != page
        else:
            path.write_text(page)
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
