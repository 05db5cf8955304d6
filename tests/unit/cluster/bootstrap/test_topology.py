"""Which hosts a job has and which one leads, from the command line, SageMaker, Slurm, or nobody."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from dojang.cluster.bootstrap import slurm
from dojang.cluster.bootstrap.sagemaker_env import failure_file
from dojang.cluster.bootstrap.topology import Roster, discover, in_order
from dojang.core.errors import ConfigError


def sagemaker(root: Path, me: str, groups: dict[str, list[str]], **more: object) -> dict[str, str]:
    config = root / "input/config"
    config.mkdir(parents=True, exist_ok=True)
    hosts = sorted(name for members in groups.values() for name in members)  # as strings, which SageMaker does
    named = [
        {"instance_group_name": name, "instance_type": "ml.x", "hosts": members} for name, members in groups.items()
    ]
    job: dict[str, Any] = {"current_host": me, "hosts": hosts, "instance_groups": named} | more
    (config / "resourceconfig.json").write_text(json.dumps(job))
    return {"SAGEMAKER_BASE_DIR": str(root)}


def nobody(tmp_path: Path) -> dict[str, str]:
    return {"SAGEMAKER_BASE_DIR": str(tmp_path / "nothing here")}


def test_hosts_are_sorted_as_people_count() -> None:
    assert in_order(["algo-10", "algo-2", "algo-1"]) == ["algo-1", "algo-2", "algo-10"]
    assert in_order(["b1", "a", "a-1-10", "a-1-9"]) == ["a", "a-1-9", "a-1-10", "b1"]


def test_alone(tmp_path: Path) -> None:
    alone = discover(environment=nobody(tmp_path))
    assert (alone.leads, alone.workers, alone.source) == (True, (), "a single host")
    assert failure_file(nobody(tmp_path)) is None


def test_the_command_line_comes_first_and_the_first_host_leads(tmp_path: Path) -> None:
    environment = sagemaker(tmp_path, "algo-1", {"all": ["algo-1", "algo-2"]}, network_interface_name="eth7")
    found = discover(["b", "a"], "a", environment=environment)
    assert found == Roster(("b", "a"), "a", "--hosts", "eth7")
    assert not found.leads


def test_a_host_knows_itself_by_name_or_address(tmp_path: Path) -> None:
    name = socket.gethostname()
    assert discover(["elsewhere", name], environment=nobody(tmp_path)).me == name
    assert discover(["elsewhere", f"{name.split('.')[0]}.example.org"], environment=nobody(tmp_path)).me.startswith(
        name
    )
    assert discover(["192.0.2.77", "127.0.0.1"], environment=nobody(tmp_path)).me == "127.0.0.1"


@pytest.mark.parametrize(
    ("hosts", "host", "complaint"),
    [
        (["192.0.2.77", "192.0.2.78"], "", r"none of 192.0.2.77, 192.0.2.78; say which with --host"),
        (["127.0.0.1", "127.0.0.2"], "", r"any of 127.0.0.1, 127.0.0.2; say which with --host"),
        (["a", "b"], "c", r"this host is c, which is not among"),
        (["a", "b", "a"], "a", r"a: named twice"),
        (["a", ""], "a", r"a name is missing"),
    ],
)
def test_what_is_wrong_with_hosts_is_said(tmp_path: Path, hosts: list[str], host: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        discover(hosts, host, environment=nobody(tmp_path))


def test_sagemaker_with_equal_hosts(tmp_path: Path) -> None:
    names = [f"algo-{number}" for number in range(1, 12)]
    groups = {"homogeneousCluster": names}
    first = discover(environment=sagemaker(tmp_path, "algo-1", groups, network_interface_name="eth0"))
    assert first.leads
    assert first.interface == "eth0"
    assert first.hosts == tuple(names)
    assert not discover(environment=sagemaker(tmp_path, "algo-10", groups)).leads
    assert discover(environment=sagemaker(tmp_path, "algo-10", groups)).head == "algo-1"


def test_sagemaker_with_groups_needs_to_know_which_leads(tmp_path: Path) -> None:
    groups = {"gpus": ["algo-1", "algo-2"], "boss": ["algo-10", "algo-9"]}
    environment = sagemaker(tmp_path, "algo-2", groups)
    with pytest.raises(ConfigError, match=r"--head-group.*gpus \(algo-1, algo-2\), boss \(algo-9, algo-10\)"):
        discover(environment=environment)
    with pytest.raises(ConfigError, match=r"--head-group cpus: there is no such instance group; there are gpus"):
        discover(head_group="cpus", environment=environment)
    found = discover(head_group="boss", environment=environment)
    assert found.hosts == ("algo-9", "algo-1", "algo-2", "algo-10")


def test_a_group_is_refused_where_there_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only SageMaker has instance groups"):
        discover(head_group="boss", environment=nobody(tmp_path))


def test_a_coordinator_and_one_worker_are_two(tmp_path: Path) -> None:
    groups = {"boss": ["algo-2"], "gpus": ["algo-1"]}
    roles = {}
    for me in ("algo-1", "algo-2"):
        roles[me] = discover(head_group="boss", environment=sagemaker(tmp_path, me, groups))
    assert [(roster.leads, roster.hosts) for roster in roles.values()] == [
        (False, ("algo-2", "algo-1")),
        (True, ("algo-2", "algo-1")),
    ]


def test_sagemaker_by_its_variables_alone(tmp_path: Path) -> None:
    hosts = {
        "SM_HOSTS": '["algo-1", "algo-10", "algo-2"]',
        "SM_CURRENT_HOST": "algo-2",
        "SM_NETWORK_INTERFACE_NAME": "e",
    }
    found = discover(environment=nobody(tmp_path) | hosts)
    assert found == Roster(("algo-1", "algo-2", "algo-10"), "algo-2", "SageMaker", "e")
    config = {"SM_RESOURCE_CONFIG": '{"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "f"}'}
    assert discover(environment=nobody(tmp_path) | hosts | config).interface == "f"


@pytest.mark.parametrize("text", ["{", "[]", '{"hosts": []}', '{"hosts": "algo-1", "current_host": "algo-1"}'])
def test_a_description_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
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
def test_node_lists_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="list of nodes"):
        slurm.expand(text)


def test_slurm(tmp_path: Path) -> None:
    environment = {
        **nobody(tmp_path),
        "SLURM_JOB_NODELIST": "gpu[8-11]",
        "SLURMD_NODENAME": "gpu10",
        "SLURM_LOCALID": "0",
    }
    found = discover(environment=environment)
    assert (found.hosts, found.me, found.source) == (("gpu8", "gpu9", "gpu10", "gpu11"), "gpu10", "Slurm")
    step = discover(environment=environment | {"SLURM_STEP_NODELIST": "gpu[10-11]"})
    assert step.leads
    assert step.workers == ("gpu11",)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [({"SLURM_LOCALID": "1"}, "ntasks-per-node=1"), ({"SLURMD_NODENAME": ""}, "SLURMD_NODENAME is not set")],
)
def test_slurm_tasks_that_cannot_take_part_say_why(tmp_path: Path, changes: dict[str, str], complaint: str) -> None:
    environment = {**nobody(tmp_path), "SLURM_JOB_NODELIST": "gpu[1-2]", "SLURMD_NODENAME": "gpu1"} | changes
    with pytest.raises(ConfigError, match=complaint):
        discover(environment=environment)


def test_spaces_between_hosts_do_not_hide_this_one(tmp_path: Path) -> None:
    me = socket.gethostname()
    assert discover(["one", f" {me}"], environment=nobody(tmp_path)).me == me
