"""Hosts of a job and its head, from the command line, SageMaker, Slurm, or a single host."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from dojang.cluster.bootstrap import slurm
from dojang.cluster.bootstrap.sagemaker_env import failure_file
from dojang.cluster.bootstrap.topology import Topology, discover, natural_sort
from dojang.core.errors import ConfigError


def sagemaker(root: Path, this_host: str, groups: dict[str, list[str]], **more: object) -> dict[str, str]:
    config = root / "input/config"
    config.mkdir(parents=True, exist_ok=True)
    hosts = sorted(name for members in groups.values() for name in members)  # as strings, like SageMaker
    named = [
        {"instance_group_name": name, "instance_type": "ml.x", "hosts": members} for name, members in groups.items()
    ]
    job: dict[str, Any] = {"current_host": this_host, "hosts": hosts, "instance_groups": named} | more
    (config / "resourceconfig.json").write_text(json.dumps(job))
    return {"SAGEMAKER_BASE_DIR": str(root)}


def no_cluster(tmp_path: Path) -> dict[str, str]:
    return {"SAGEMAKER_BASE_DIR": str(tmp_path / "nothing here")}


def test_hosts_are_sorted_by_number() -> None:
    assert natural_sort(["algo-10", "algo-2", "algo-1"]) == ["algo-1", "algo-2", "algo-10"]
    assert natural_sort(["b1", "a", "a-1-10", "a-1-9"]) == ["a", "a-1-9", "a-1-10", "b1"]


def test_single_host(tmp_path: Path) -> None:
    alone = discover(environment=no_cluster(tmp_path))
    assert (alone.is_head, alone.workers, alone.source) == (True, (), "a single host")
    assert failure_file(no_cluster(tmp_path)) is None


def test_command_line_comes_first_and_its_first_host_is_the_head(tmp_path: Path) -> None:
    environment = sagemaker(tmp_path, "algo-1", {"all": ["algo-1", "algo-2"]}, network_interface_name="eth7")
    found = discover(["b", "a"], "a", environment=environment)
    assert found == Topology(("b", "a"), "a", "--hosts", "eth7")
    assert not found.is_head


def test_this_host_is_found_by_name_or_address(tmp_path: Path) -> None:
    name = socket.gethostname()
    assert discover(["elsewhere", name], environment=no_cluster(tmp_path)).this_host == name
    assert discover(
        ["elsewhere", f"{name.split('.')[0]}.example.org"], environment=no_cluster(tmp_path)
    ).this_host.startswith(name)
    assert discover(["192.0.2.77", "127.0.0.1"], environment=no_cluster(tmp_path)).this_host == "127.0.0.1"


@pytest.mark.parametrize(
    ("hosts", "host", "complaint"),
    [
        (["192.0.2.77", "192.0.2.78"], "", r"none of 192.0.2.77, 192.0.2.78; choose with --host"),
        (["127.0.0.1", "127.0.0.2"], "", r"any of 127.0.0.1, 127.0.0.2; choose with --host"),
        (["a", "b"], "c", r"this host is c, which is not among"),
        (["a", "b", "a"], "a", r"a: named twice"),
        (["a", ""], "a", r"a name is missing"),
    ],
)
def test_invalid_hosts_are_refused(tmp_path: Path, hosts: list[str], host: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        discover(hosts, host, environment=no_cluster(tmp_path))


def test_sagemaker_with_equal_hosts(tmp_path: Path) -> None:
    names = [f"algo-{number}" for number in range(1, 12)]
    groups = {"homogeneousCluster": names}
    first = discover(environment=sagemaker(tmp_path, "algo-1", groups, network_interface_name="eth0"))
    assert first.is_head
    assert first.interface == "eth0"
    assert first.hosts == tuple(names)
    assert not discover(environment=sagemaker(tmp_path, "algo-10", groups)).is_head
    assert discover(environment=sagemaker(tmp_path, "algo-10", groups)).head == "algo-1"


def test_sagemaker_with_groups_needs_a_head_group(tmp_path: Path) -> None:
    groups = {"gpus": ["algo-1", "algo-2"], "boss": ["algo-10", "algo-9"]}
    environment = sagemaker(tmp_path, "algo-2", groups)
    with pytest.raises(ConfigError, match=r"--head-group.*gpus \(algo-1, algo-2\), boss \(algo-9, algo-10\)"):
        discover(environment=environment)
    with pytest.raises(ConfigError, match=r"--head-group cpus: no such instance group; the job has gpus"):
        discover(head_group="cpus", environment=environment)
    found = discover(head_group="boss", environment=environment)
    assert found.hosts == ("algo-9", "algo-1", "algo-2", "algo-10")


def test_head_group_is_refused_outside_sagemaker(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only SageMaker has instance groups"):
        discover(head_group="boss", environment=no_cluster(tmp_path))


def test_head_group_and_one_worker(tmp_path: Path) -> None:
    groups = {"boss": ["algo-2"], "gpus": ["algo-1"]}
    roles = {}
    for this_host in ("algo-1", "algo-2"):
        roles[this_host] = discover(head_group="boss", environment=sagemaker(tmp_path, this_host, groups))
    assert [(topology.is_head, topology.hosts) for topology in roles.values()] == [
        (False, ("algo-2", "algo-1")),
        (True, ("algo-2", "algo-1")),
    ]


def test_sagemaker_from_variables_alone(tmp_path: Path) -> None:
    hosts = {
        "SM_HOSTS": '["algo-1", "algo-10", "algo-2"]',
        "SM_CURRENT_HOST": "algo-2",
        "SM_NETWORK_INTERFACE_NAME": "e",
    }
    found = discover(environment=no_cluster(tmp_path) | hosts)
    assert found == Topology(("algo-1", "algo-2", "algo-10"), "algo-2", "SageMaker", "e")
    config = {"SM_RESOURCE_CONFIG": '{"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "f"}'}
    assert discover(environment=no_cluster(tmp_path) | hosts | config).interface == "f"


@pytest.mark.parametrize("text", ["{", "[]", '{"hosts": []}', '{"hosts": "algo-1", "current_host": "algo-1"}'])
def test_invalid_resource_config_is_named(tmp_path: Path, text: str) -> None:
    environment = sagemaker(tmp_path, "algo-1", {"all": ["algo-1"]})
    (tmp_path / "input/config/resourceconfig.json").write_text(text)
    with pytest.raises(ConfigError, match=r"resourceconfig\.json does not describe a training job"):
        discover(environment=environment)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("a,b", ["a", "b"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("rack[1-2]-n[1,3].local", ["rack1-n1.local", "rack1-n3.local", "rack2-n1.local", "rack2-n3.local"]),
    ],
)
def test_node_lists_are_expanded(text: str, names: list[str]) -> None:
    assert slurm.expand(text) == names


@pytest.mark.parametrize("text", ["gpu[1-", "gpu[a-b]", "a,,b", "gpu1]", "gpu[1-99999999]"])
def test_invalid_node_lists_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="list of nodes"):
        slurm.expand(text)


def test_slurm(tmp_path: Path) -> None:
    environment = {
        **no_cluster(tmp_path),
        "SLURM_JOB_NODELIST": "gpu[8-11]",
        "SLURMD_NODENAME": "gpu10",
        "SLURM_LOCALID": "0",
    }
    found = discover(environment=environment)
    assert (found.hosts, found.this_host, found.source) == (("gpu8", "gpu9", "gpu10", "gpu11"), "gpu10", "Slurm")
    step = discover(environment=environment | {"SLURM_STEP_NODELIST": "gpu[10-11]"})
    assert step.is_head
    assert step.workers == ("gpu11",)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"SLURM_LOCALID": "1"}, "ntasks-per-node=1"), ({"SLURMD_NODENAME": ""}, "SLURMD_NODENAME is not set")],
)
def test_invalid_slurm_tasks_are_refused(tmp_path: Path, changes: dict[str, str], complaint: str) -> None:
    environment = {**no_cluster(tmp_path), "SLURM_JOB_NODELIST": "gpu[1-2]", "SLURMD_NODENAME": "gpu1"} | changes
    with pytest.raises(ConfigError, match=complaint):
        discover(environment=environment)


def test_spaces_between_hosts_are_ignored(tmp_path: Path) -> None:
    this_host = socket.gethostname()
    assert discover(["one", f" {this_host}"], environment=no_cluster(tmp_path)).this_host == this_host
