"""Head and workers together, with a stand-in for Ray: who learns what, which way it ever ends."""

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
from dojang.cluster.bootstrap.head import lead
from dojang.cluster.bootstrap.options import End, Options
from dojang.cluster.bootstrap.ray_node import head_command, ray_environment, worker_command
from dojang.cluster.bootstrap.stop_signals import Stop
from dojang.cluster.bootstrap.topology import Roster
from dojang.cluster.bootstrap.worker import serve
from dojang.core.errors import ConfigError

HOSTS = ("localhost", "one", "two")  # the head has to have a name that means this machine

# Says that it is there by a file, and listens if it is a head.
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
    """Every host is a thread here. What Ray counts as alive is what has a file."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        wanted = {"timeout": 20.0, "grace": 5.0, "patience": 1.0, "muster_port": network.free_port(), **options}
        self.options = Options(port=network.free_port(), **wanted)  # type: ignore[arg-type]
        self.stops = {name: Stop() for name in HOSTS}
        self.said: dict[str, list[str]] = {name: [] for name in HOSTS}
        self.ends: dict[str, End] = {}
        self.threads: dict[str, threading.Thread] = {}

    def start(self, command: Sequence[str], hosts: Sequence[str] = HOSTS) -> None:
        for name in hosts:
            self.threads[name] = threading.Thread(target=self._host, args=(name, command))
            self.threads[name].start()

    def _host(self, name: str, command: Sequence[str]) -> None:
        roster, say = Roster(HOSTS, name, "a test"), self.said[name].append
        if roster.leads:
            self.ends[name] = lead(roster, self.options, command, self.stops[name], say)
        else:
            self.ends[name] = serve(roster, self.options, self.stops[name], say)

    def says(self, name: str, text: str) -> None:
        deadline = time.monotonic() + 20
        while not any(text in line for line in self.said[name]):
            assert time.monotonic() < deadline, f"{name} has not said {text!r} but {self.said}"
            time.sleep(0.02)

    def result(self) -> dict[str, End]:
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

    class StandIn:
        def __init__(self, *_: object) -> None: ...
        def alive(self) -> dict[str, str]:
            return {path.name: "127.0.0.1" for path in folder.iterdir()}

        def close(self) -> None: ...

    def start(name: str, address: str, options: Options) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", RAY, str(folder), name]

    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr("dojang.cluster.bootstrap.ray_node._start", start)
    monkeypatch.setattr("dojang.cluster.bootstrap.wait_for_nodes.RollCall", StandIn)
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


def test_all_end_as_the_command_does(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    scrape, seen = tmp_path / "metrics/prometheus.yml", tmp_path / "seen"
    cluster = make_cluster(prometheus=scrape)
    cluster.start(["sh", "-c", f"echo $RAY_ADDRESS $RAY_AUTH_MODE >> {seen}; exit 3"])
    text = "sh on localhost ended with exit code 3"
    assert cluster.result() == dict.fromkeys(HOSTS, End(3, text))
    assert seen.read_text() == f"127.0.0.1:{cluster.options.port} disabled\n"  # once, on the head
    jobs = yaml.safe_load(scrape.read_text())["scrape_configs"][0]["static_configs"]
    assert {job["labels"]["host"] for job in jobs} == set(HOSTS)
    assert jobs[0]["targets"] == ["127.0.0.1:8080"]


def test_success_is_told_after_a_while_if_somebody_wants_to_look(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(wait_shutdown=1.5)
    cluster.start(["true"])
    cluster.says("localhost", "the cluster stays up for 1.5 s")
    time.sleep(0.7)
    assert cluster.ends == {}
    assert cluster.result() == dict.fromkeys(HOSTS, End(0, ""))


def test_who_does_not_come_is_named_everywhere(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(timeout=2.0)
    cluster.start(["true"], ["localhost", "one"])
    ends = cluster.result()
    assert ends["localhost"] == ends["one"]
    assert ends["one"].code == 9
    # The others may be slow to start; of the one that is not there no more can be said.
    assert re.search(r"after 2 s: \d of 3 hosts did not come: .*two has not reported to the head\.", ends["one"].text)


def test_a_host_where_ray_does_not_start_says_why(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    (cluster.folder / "broken-two").touch()
    cluster.start(["true"])
    ends = cluster.result()
    assert {end.code for end in ends.values()} == {9}
    assert "two gave up: Ray does not stay up on two; it said: no space left for objects" in ends["one"].text


def test_a_head_where_ray_does_not_start_says_why(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster()
    (cluster.folder / "broken-localhost").touch()
    cluster.start(["true"])
    text = "Ray does not stay up on localhost; it said: no space left for objects"
    assert cluster.result() == dict.fromkeys(HOSTS, End(9, text))


def test_a_signal_for_the_head_is_passed_on_and_the_cluster_stays_until_the_command_has_ended(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    saving = f"trap 'sleep 1; ls {tmp_path}/alive > {tmp_path}/saved; exit 130' TERM; touch {ready}; "
    saving += "while :; do sleep 0.1; done"
    cluster = make_cluster()
    cluster.start(["sh", "-c", saving])
    cluster.says("localhost", "all 3 hosts are there")
    while not ready.exists():
        time.sleep(0.02)
    for stop in cluster.stops.values():
        stop.ask(signal.SIGTERM)
    assert {end.code for end in cluster.result().values()} == {130}
    assert (tmp_path / "saved").read_text().split() == sorted(HOSTS)


def test_a_command_that_does_not_obey_is_killed(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(grace=0.5)
    cluster.start(["sh", "-c", "trap '' TERM; sleep 600; sleep 600"])
    cluster.says("localhost", "all 3 hosts are there")
    time.sleep(0.5)
    cluster.stops["localhost"].ask(signal.SIGTERM)
    text = "sh on localhost ended with exit code 137 (SIGKILL)"
    assert cluster.result() == dict.fromkeys(HOSTS, End(137, text))


def test_a_worker_that_is_told_to_stop_leaves_and_the_head_goes_on(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    cluster = make_cluster(grace=0.5)
    cluster.start(["sh", "-c", f"while [ ! -e {go} ]; do sleep 0.1; done"])
    cluster.says("localhost", "all 3 hosts are there")
    cluster.stops["one"].ask(signal.SIGTERM)
    cluster.says("localhost", "one: told to stop; serves for 0.5 s more at most")
    cluster.says("localhost", "one leaves: told to stop")
    go.touch()
    assert cluster.result() == {"localhost": End(0, ""), "one": End(130, "told to stop"), "two": End(0, "")}


def test_told_to_stop_before_it_began(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster()
    cluster.start(["touch", str(tmp_path / "ran")], ["localhost", "one"])
    cluster.says("localhost", "one is here")
    cluster.stops["localhost"].ask(signal.SIGTERM)
    ends = cluster.result()
    assert ends["localhost"] == ends["one"]
    assert ends["one"].code == 130
    assert "the command has not been started" in ends["one"].text
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SageMaker's layout, in the eyes of this process."""
    (tmp_path / "output").mkdir()
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.setattr(Stop, "install", lambda self: None)
    return tmp_path / "output/failure"


def test_a_failure_is_written_for_sagemaker(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "lead", lambda *_: End(3, "it failed"))
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
        (["true"], Options(metrics_port=18080), "--metrics-port 18080: Ray keeps 10002 to 19999"),
        (["true"], Options(muster_port=8080), "--muster-port 8080: another one of .* is the same"),
        (["true"], Options(prometheus=Path("p.yml"), metrics_port=0), "--metrics-port"),
    ],
)
def test_what_cannot_be_is_said_and_written(
    outputs: Path, command: list[str], options: Options, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        entry.ray_cluster(command, [], "", "", options)
    assert re.search(complaint, outputs.read_text())


def test_ray_is_told_whether_there_is_a_token() -> None:
    assert ray_environment("", {"RAY_ADDRESS": "elsewhere:1"})["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_ADDRESS" not in ray_environment("", {"RAY_ADDRESS": "elsewhere:1"})
    assert ray_environment("", {"RAY_AUTH_TOKEN": "x"})["RAY_AUTH_MODE"] == "token"
    assert ray_environment("", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/x"})["RAY_AUTH_MODE"] == "token"
    with pytest.raises(ConfigError, match="set RAY_AUTH_TOKEN"):
        ray_environment("", {"RAY_AUTH_MODE": "token"})


def test_what_ray_is_asked_for(make_cluster: Callable[..., Cluster]) -> None:
    head = head_command("a", "10.0.0.1", 6379, Options(coordinator=True, dashboard_port=8266))
    assert {"--head", "--port=6379", "--num-cpus=0", "--num-gpus=0", "--dashboard-port=8266"} < set(head)
    plain = head_command("a", "10.0.0.1", 6379, Options(dashboard=False))
    assert "--include-dashboard=false" in plain
    assert not any(word.startswith(("--num-", "--dashboard-")) for word in plain)
    assert worker_command("b", "10.0.0.2", "10.0.0.1:6379", Options())[-1] == "--address=10.0.0.1:6379"


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"pip install 'dojang\[ray\]'"):
        worker_command("b", "10.0.0.2", "10.0.0.1:6379", Options())


def test_the_network_is_named_unless_the_user_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_DEVICES", tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert network.network_settings("lo", {"NCCL_SOCKET_IFNAME": "ib0"}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert network.network_settings("no-such", {}) == {}
    (tmp_path / "drivers/efa").mkdir(parents=True)
    (tmp_path / "rdmap0/device").mkdir(parents=True)
    (tmp_path / "rdmap0/device/driver").symlink_to(tmp_path / "drivers/efa")
    settings = network.network_settings("", {"FI_PROVIDER": "tcp"})
    assert settings == {"FI_EFA_USE_DEVICE_RDMA": "1", "RDMAV_FORK_SAFE": "1"}
