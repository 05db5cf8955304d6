"""`dojang dashboards`: files for Grafana and Prometheus, all made from the registry.

OUTPUT/
  grafana/dojang.json                          the dashboard
  grafana/provisioning/dashboards/dojang.yml   where Grafana finds it
  grafana/provisioning/datasources/dojang.yml  where Grafana finds Prometheus
  prometheus/prometheus.yml                    what Prometheus asks
  prometheus/dojang.rules.yml                  its alerts
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dojang.core.errors import ConfigError, RunDirError
from dojang.core.paths import writable
from dojang.core.run_dir import write_atomic
from dojang.track.alerts import JOB, rules
from dojang.track.grafana import dashboard

__all__ = ["write"]

RULES = "dojang.rules.yml"
FOUND_BY_RAY = "/tmp/ray/prom_metrics_service_discovery.json"
"""Where the head of a Ray cluster lists the exporters of its nodes, if its dashboard is on."""


def write(output: Path, targets: Sequence[str]) -> None:
    """Write all of them; those of before are replaced. `targets` are the exporters of runs, HOST:PORT each."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"OUTPUT_DIR {output} is a file; give a directory")
    for target in targets:
        host, _, port = target.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"--target {target!r} is no address of an exporter; it looks like 127.0.0.1:9464")
    output = output.resolve()
    provisioning = Path("grafana", "provisioning")
    files = {
        Path("grafana", "dojang.json"): json.dumps(dashboard(), indent=2) + "\n",
        provisioning / "dashboards" / "dojang.yml": _yaml(_provider(output / "grafana")),
        provisioning / "datasources" / "dojang.yml": _yaml(_datasources()),
        Path("prometheus", "prometheus.yml"): _yaml(_prometheus(targets)),
        Path("prometheus", RULES): _yaml(rules()),
    }
    with writable("OUTPUT_DIR", output):
        try:
            for place, text in files.items():
                write_atomic(output / place, text.encode())
        except RunDirError as error:  # what the system said counts; this is no run directory
            raise error.__cause__ or error from None
    listed = "".join(f"  {place}\n" for place in files)
    sys.stdout.write(
        f"in {output}:\n{listed}"
        f"prometheus --config.file={output}/prometheus/prometheus.yml asks {', '.join(targets)}\n"
        f"GF_PATHS_PROVISIONING={output}/{provisioning} grafana server shows the dashboard\n"
    )


def _prometheus(targets: Sequence[str]) -> dict[str, Any]:
    """Runs on Ray are asked through Ray's exporters; what those call `ray_dojang_step` is `dojang_step` then."""
    renamed = {"source_labels": ["__name__"], "regex": "ray_(dojang_.+)", "target_label": "__name__"}
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [RULES],
        "scrape_configs": [
            {"job_name": JOB, "static_configs": [{"targets": list(targets)}]},
            {
                "job_name": "ray",
                "file_sd_configs": [{"files": [FOUND_BY_RAY]}],
                "metric_relabel_configs": [{**renamed, "replacement": "$1"}],
            },
        ],
    }


def _provider(folder: Path) -> dict[str, Any]:
    options = {"path": str(folder)}
    return {"apiVersion": 1, "providers": [{"name": "dojang", "type": "file", "options": options}]}


def _datasources() -> dict[str, Any]:
    source = {"name": "Prometheus", "type": "prometheus", "access": "proxy", "url": "http://127.0.0.1:9090"}
    return {"apiVersion": 1, "datasources": [source]}


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _yaml(content: dict[str, Any]) -> str:
    header = "# Made by `dojang dashboards`, which replaces it.\n"
    return header + yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
