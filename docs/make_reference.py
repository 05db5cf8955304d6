"""Generates docs/configuration.md from the settings' docstrings, and docs/metrics.md from the metric registry.
`--check` only checks that they are up to date."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from dojang.config.key_docs import keys
from dojang.track.alerts import ALERTS
from dojang.track.registry import GAUGES, ROWS, gauge_pattern

CONFIGURATION = """\
# Configuration

Every setting, as you write it in a recipe (`train: {lr: 1e-5}`) or on the command line (`train.lr=1e-5`). `make docs`
generates this page from the settings' docstrings; `dojang train --keys` prints the same. A section with a `name` has
further settings for each choice.

On the command line, the value of a text setting is taken as you write it: `data.system=no`,
`'data.prompt={question} Answer in \\boxed{}.'`. In quotes of YAML it may have escapes:
`'data.prompt="{question}\\nAnswer:"'`. All other values are YAML: `train.betas=[0.8,0.95]`.

`null` means no value for every setting: `data.limit=null`, `data.system=null`. The text "null" needs quotes of YAML:
`'data.system="null"'`.
"""

METRICS = """\
# Metrics

Every metric of `metrics.jsonl`, by the rows and panels of the [dashboard](dashboards.md), with its name in Prometheus.
`make docs` generates this page from `src/dojang/track/registry.py`. Each training step and each evaluation adds a line
to the file; metrics that do not apply are absent.

- Angle brackets stand for a name of the run: a data source, a reward function, an outcome.
- With [two models](workflows.md), the tester's metrics have the prefix `tester/`: `critic/`, `actor/`,
  `response_length/`, `groups/` and `judge/`. Without the prefix they are the coder's.
- A custom algorithm (`algo.name=custom`) may add others."""

GAUGES_INTRODUCTION = """
## Gauges added by exporters

| in Prometheus | meaning |
|---|---|"""

ALERTS_INTRODUCTION = """
## Alerts

Alerts of [`dojang dashboards`](dashboards.md). Each fires after its condition has held for the given time.

| alert | for | severity | meaning | action |

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
            for metric in panel.metrics:
                name = re.sub(r"\(.*\)\?", "", gauge_pattern(metric)).replace(".+", "*")  # roles are explained above
                yield f"| {panel.title} | `{metric.name}` | {metric.unit} | {metric.meaning} | `{name}` |"
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
