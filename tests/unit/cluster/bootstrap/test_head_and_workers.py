"""Head and workers together, with a fake Ray: each host gets the job's result, however it ends."""

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from dojang.cluster.bootstrap import network
from dojang.cluster.bootstrap import start_cluster as entry
from dojang.cluster.bootstrap.head import run_head
from dojang.cluster.bootstrap.options import JobResult, Options
from dojang.cluster.bootstrap.ray_node import head_command, ray_environment, worker_command
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.topology import Topology
from dojang.cluster.bootstrap.worker import run_worker
from dojang.core.errors import ConfigError

HOSTS = ("localhost", "one", "two")  # the head's name must resolve to this machine

# Creates a file while it is alive, and listens if it is a head.
RAY = """
import os, signal, socket, sys, time
folder, name = sys.argv[1:3]
path = os.path.join(folder, name)
if os.path.exists(os.path.join(folder, "broken-" + name)):
    sys.exit("no space left for objects")
open(path, "w").close()
port = [int(word.split("=")[1]) for word in sys.argv if word.startswith("--port=")]
server = socket.create_server(("127.0.0.1", port[0])) if port else None
def end(*_):
    os.remove(path)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
while True:
    time.sleep(0.05)
"""


class Cluster:
    """Runs every host as a thread. Nodes with a file count as alive."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        wanted = {"timeout": 20.0, "grace": 5.0, "reconnect": 1.0, "rendezvous_port": network.free_port(), **options}
        self.options = Options(port=network.free_port(), **wanted)  # type: ignore[arg-type]
        self.stops = {name: Stop() for name in HOSTS}
        self.said: dict[str, list[str]] = {name: [] for name in HOSTS}
        self.ends: dict[str, JobResult] = {}
        self.threads: dict[str, threading.Thread] = {}

    def start(self, command: Sequence[str], hosts: Sequence[str] = HOSTS) -> None:
        for name in hosts:
            self.threads[name] = threading.Thread(target=self._host, args=(name, command))
            self.threads[name].start()

    def _host(self, name: str, command: Sequence[str]) -> None:
        topology, say = Topology(HOSTS, name, "a test"), self.said[name].append
        if topology.is_head:
            self.ends[name] = run_head(topology, self.options, command, self.stops[name], say)
        else:
            self.ends[name] = run_worker(topology, self.options, self.stops[name], say)

    def says(self, name: str, text: str) -> None:
        deadline = time.monotonic() + 20
        while not any(text in line for line in self.said[name]):
            assert time.monotonic() < deadline, f"{name} has not said {text!r} but {self.said}"
            time.sleep(0.02)

    def result(self) -> dict[str, JobResult]:
        for name, thread in self.threads.items():
            thread.join(40)
            assert not thread.is_alive(), f"{name} does not end; {self.said}"
        assert [path.name for path in self.folder.iterdir() if not path.name.startswith("broken")] == []
        return self.ends


@pytest.fixture
def make_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    folder = tmp_path / "alive"
    folder.mkdir()
    made: list[Cluster] = []

    class FakeNodeCheck:
        def __init__(self, *_: object) -> None: ...
        def alive(self) -> dict[str, str]:
            return {path.name: "127.0.0.1" for path in folder.iterdir()}

        def close(self) -> None: ...

    def start(name: str, address: str, options: Options) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", RAY, str(folder), name]

    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr("dojang.cluster.bootstrap.ray_node._start", start)
    monkeypatch.setattr("dojang.cluster.bootstrap.wait_for_nodes.NodeCheck", FakeNodeCheck)
    monkeypatch.setattr("dojang.cluster.bootstrap.head.own_address", lambda *_: "127.0.0.1")

    def make(**options: object) -> Cluster:
        made.append(Cluster(folder, **options))
        return made[-1]

    yield make
    for cluster in made:
        for stop in cluster.stops.values():
            stop.ask(signal.SIGTERM)
        for thread in cluster.threads.values():
            thread.join(30)


def test_every_host_returns_the_command_s_exit_code(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    scrape, seen = tmp_path / "metrics/prometheus.yml", tmp_path / "seen"
    cluster = make_cluster(prometheus=scrape)
    cluster.start(["sh", "-c", f"echo $RAY_ADDRESS $RAY_AUTH_MODE >> {seen}; exit 3"])
    text = "sh on localhost ended with exit code 3"
    assert cluster.result() == dict.fromkeys(HOSTS, JobResult(3, text))
    assert seen.read_text() == f"127.0.0.1:{cluster.options.port} disabled\n"  # once, on the head
    jobs = yaml.safe_load(scrape.read_text())["scrape_configs"][0]["static_configs"]
    assert {job["labels"]["host"] for job in jobs} == set(HOSTS)
    assert jobs[0]["targets"] == ["127.0.0.1:8080"]


def test_wait_shutdown_keeps_the_cluster_up_after_success(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(wait_shutdown=1.5)
    cluster.start(["true"])
    cluster.says("localhost", "the cluster stays up for 1.5 s")
    time.sleep(0.7)
    assert cluster.ends == {}
    assert cluster.result() == dict.fromkeys(HOSTS, JobResult(0, ""))


def test_missing_hosts_are_named_on_every_host(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(timeout=2.0)
    cluster.start(["true"], ["localhost", "one"])
    ends = cluster.result()
    assert ends["localhost"] == ends["one"]
    assert ends["one"].code == 9
    # The others may be slow to start; nothing more is known of the missing one.
    assert re.search(r"after 2 s: \d of 3 hosts are missing: .*two has not connected to the head\.", ends["one"].text)


def test_ray_failure_on_a_worker_is_reported(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    (cluster.folder / "broken-two").touch()
    cluster.start(["true"])
    ends = cluster.result()
    assert {end.code for end in ends.values()} == {9}
    assert "two gave up: Ray does not stay up on two; its last output: no space left for objects" in ends["one"].text


def test_ray_failure_on_the_head_is_reported(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    (cluster.folder / "broken-localhost").touch()
    cluster.start(["true"])
    text = "Ray does not stay up on localhost; its last output: no space left for objects"
    assert cluster.result() == dict.fromkeys(HOSTS, JobResult(9, text))


def test_signal_on_the_head_is_forwarded_and_the_cluster_stays_until_the_command_ends(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    saving = f"trap 'sleep 1; ls {tmp_path}/alive > {tmp_path}/saved; exit 130' TERM; touch {ready}; "
    saving += "while :; do sleep 0.1; done"
    cluster = make_cluster()
    cluster.start(["sh", "-c", saving])
    cluster.says("localhost", "all 3 hosts joined")
    while not ready.exists():
        time.sleep(0.02)
    for stop in cluster.stops.values():
        stop.ask(signal.SIGTERM)
    assert {end.code for end in cluster.result().values()} == {130}
    assert (tmp_path / "saved").read_text().split() == sorted(HOSTS)


def test_command_that_ignores_sigterm_is_killed(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(grace=0.5)
    cluster.start(["sh", "-c", "trap '' TERM; sleep 600; sleep 600"])
    cluster.says("localhost", "all 3 hosts joined")
    time.sleep(0.5)
    cluster.stops["localhost"].ask(signal.SIGTERM)
    text = "sh on localhost ended with exit code 137 (SIGKILL)"
    assert cluster.result() == dict.fromkeys(HOSTS, JobResult(137, text))


def test_signal_on_a_worker_ends_it_and_the_head_continues(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    cluster = make_cluster(grace=0.5)
    cluster.start(["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.1; done"])
    cluster.says("localhost", "all 3 hosts joined")
    cluster.stops["one"].ask(signal.SIGTERM)
    cluster.says("localhost", "one: told to stop; leaving within 0.5 s")
    cluster.says("localhost", "one left: told to stop")
    go.touch()
    assert cluster.result() == {
        "localhost": JobResult(0, ""),
        "one": JobResult(130, "told to stop"),
        "two": JobResult(0, ""),
    }


def test_stop_before_the_command_started(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster()
    cluster.start(["touch", str(tmp_path / "ran")], ["localhost", "one"])
    cluster.says("localhost", "one joined")
    cluster.stops["localhost"].ask(signal.SIGTERM)
    ends = cluster.result()
    assert ends["localhost"] == ends["one"]
    assert ends["one"].code == 130
    assert "the command was not started" in ends["one"].text
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Failure file in a copy of SageMaker's layout."""
    (tmp_path / "output").mkdir()
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.setattr(Stop, "install", lambda self: None)
    return tmp_path / "output/failure"


def test_failure_is_written_for_sagemaker(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "run_head", lambda *_: JobResult(3, "it failed"))
    assert entry.ray_cluster(["true"], [], "", "", Options()) == 3
    assert outputs.read_text() == "it failed\n"
    outputs.write_text("what the command wrote")
    assert entry.ray_cluster(["true"], [], "", "", Options()) == 3
    assert outputs.read_text() == "what the command wrote"


@pytest.mark.parametrize(
    ("command", "options", "complaint"),
    [
        ([], Options(), "no command"),
        (["true"], Options(coordinator=True), "no other host"),
        (["true"], Options(metrics_port=18080), "--metrics-port 18080: Ray reserves 10002 to 19999"),
        (["true"], Options(rendezvous_port=8080), "--rendezvous-port 8080: the same as another one of"),
        (["true"], Options(prometheus=Path("p.yml"), metrics_port=0), "--metrics-port"),
    ],
)
def test_invalid_options_are_refused_and_recorded(
    outputs: Path, command: list[str], options: Options, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        entry.ray_cluster(command, [], "", "", options)
    assert re.search(complaint, outputs.read_text())


def test_ray_auth_mode_follows_the_token() -> None:
    assert ray_environment("", {"RAY_ADDRESS": "elsewhere:1"})["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_ADDRESS" not in ray_environment("", {"RAY_ADDRESS": "elsewhere:1"})
    assert ray_environment("", {"RAY_AUTH_TOKEN": "x"})["RAY_AUTH_MODE"] == "token"
    assert ray_environment("", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/x"})["RAY_AUTH_MODE"] == "token"
    with pytest.raises(ConfigError, match="set RAY_AUTH_TOKEN"):
        ray_environment("", {"RAY_AUTH_MODE": "token"})


def test_ray_start_options(make_cluster: Callable[..., Cluster]) -> None:
    head = head_command("a", "10.0.0.1", 6379, Options(coordinator=True, dashboard_port=8266))
    assert {"--head", "--port=6379", "--num-cpus=0", "--num-gpus=0", "--dashboard-port=8266"} < set(head)
    plain = head_command("a", "10.0.0.1", 6379, Options(dashboard=False))
    assert "--include-dashboard=false" in plain
    assert not any(word.startswith(("--num-", "--dashboard-")) for word in plain)
    assert worker_command("b", "10.0.0.2", "10.0.0.1:6379", Options())[-1] == "--address=10.0.0.1:6379"


def test_missing_ray_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"pip install 'dojang\[ray\]'"):
        worker_command("b", "10.0.0.2", "10.0.0.1:6379", Options())


def test_network_variables_keep_the_user_s_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_DEVICES", tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert network.network_settings("lo", {"NCCL_SOCKET_IFNAME": "ib0"}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert network.network_settings("no-such", {}) == {}
    (tmp_path / "drivers/efa").mkdir(parents=True)
    (tmp_path / "rdmap0/device").mkdir(parents=True)
    (tmp_path / "rdmap0/device/driver").symlink_to(tmp_path / "drivers/efa")
    settings = network.network_settings("", {"FI_PROVIDER": "tcp"})
    assert settings == {"FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
