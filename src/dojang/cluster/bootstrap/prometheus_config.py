"""Writes a prometheus.yml that scrapes the Ray node of every host, labelled with the host's name."""

from collections.abc import Mapping
from pathlib import Path

from dojang.core.paths import writable

__all__ = ["write_scrape_config"]


def write_scrape_config(path: Path, addresses: Mapping[str, str], port: int) -> None:
    import yaml

    targets = [{"targets": [f"{address}:{port}"], "labels": {"host": name}} for name, address in addresses.items()]
    config = {
        "global": {"scrape_interval": "10s"},
        "scrape_configs": [{"job_name": "ray", "static_configs": targets}],
    }
    with writable("--prometheus", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(config, sort_keys=False))
