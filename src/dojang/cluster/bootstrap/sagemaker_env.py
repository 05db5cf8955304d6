"""Reads a SageMaker training container's hosts, instance groups, network interface and failure file.

The source is resourceconfig.json, which lists instance groups, or the SM_* variables without that file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dojang.core.errors import ConfigError

__all__ = ["Job", "failure_file", "read"]


@dataclass(frozen=True)
class Job:
    """A training job, seen from one of its hosts."""

    hosts: list[str]
    this_host: str
    groups: dict[str, list[str]]
    interface: str


def read(environment: Mapping[str, str]) -> Job | None:
    """Reads the job's description; None outside SageMaker."""
    path = _root(environment) / "input/config/resourceconfig.json"
    if path.is_file():
        text, source = path.read_text(), str(path)
    elif environment.get("SM_RESOURCE_CONFIG"):
        text, source = environment["SM_RESOURCE_CONFIG"], "SM_RESOURCE_CONFIG"
    elif environment.get("SM_HOSTS") and environment.get("SM_CURRENT_HOST"):
        text = f'{{"hosts": {environment["SM_HOSTS"]}, "current_host": {json.dumps(environment["SM_CURRENT_HOST"])}}}'
        source = "SM_HOSTS"
    else:
        return None
    try:
        return _job(json.loads(text), environment)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{source} does not describe a training job: {type(error).__name__}: {error}") from None


def failure_file(environment: Mapping[str, str]) -> Path | None:
    """Path of the file in which SageMaker expects the reason of a failure; None outside SageMaker."""
    output = _root(environment) / "output"
    return output / "failure" if output.is_dir() else None


def _root(environment: Mapping[str, str]) -> Path:
    """/opt/ml, or SAGEMAKER_BASE_DIR, as in SageMaker's own toolkit."""
    return Path(environment.get("SAGEMAKER_BASE_DIR") or "/opt/ml")


def _job(config: dict[str, Any], environment: Mapping[str, str]) -> Job:
    groups = {group["instance_group_name"]: list(group["hosts"]) for group in config.get("instance_groups") or []}
    interface = config.get("network_interface_name") or environment.get("SM_NETWORK_INTERFACE_NAME", "")
    hosts = config["hosts"]
    if not isinstance(hosts, list) or not hosts:
        raise ValueError("hosts is not a list of names")
    return Job([str(host) for host in hosts], str(config["current_host"]), groups, interface)
