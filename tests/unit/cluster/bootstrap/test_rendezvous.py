"""Rendezvous between head and workers: authentication, messages, disconnects and reconnects."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from dojang.cluster.bootstrap.head_connection import HeadConnection
from dojang.cluster.bootstrap.messages import ConnectionLost, JsonConnection, job_secret, proof
from dojang.cluster.bootstrap.options import JobResult
from dojang.cluster.bootstrap.rendezvous import Rendezvous
from dojang.core.errors import ClusterError

SECRET = job_secret(["head", "one", "two"], {"RAY_AUTH_TOKEN": "a token"})


def soon(done: Callable[[], object], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens timeouts, so that a lost connection is noticed at once."""
    monkeypatch.setattr("dojang.cluster.bootstrap.messages.RECEIVE_TIMEOUT", 1.5)
    monkeypatch.setattr("dojang.cluster.bootstrap.head_connection.HEARTBEAT", 0.1)


class Hosts:
    """A rendezvous server and its workers."""

    def __init__(self, stack: ExitStack) -> None:
        self.said: list[str] = []
        self._stack = stack
        self.rendezvous = self.open()

    def open(self, port: int = 0) -> Rendezvous:
        rendezvous = Rendezvous("127.0.0.1", port, ["one", "two"], SECRET, self.said.append, reconnect=0.5)
        return self._stack.enter_context(closing(rendezvous))

    def connect(self, name: str, secret: bytes = SECRET, timeout: float = 10, reconnect: float = 0.5) -> HeadConnection:
        link = HeadConnection("127.0.0.1", self.rendezvous.port, name, secret, timeout, reconnect)
        return self._stack.enter_context(closing(link))

    def heard(self, text: str) -> bool:
        return soon(lambda: any(text in line for line in self.said))


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(stack)


def test_workers_receive_ray_s_address_and_the_result(hosts: Hosts) -> None:
    assert hosts.rendezvous.not_connected() == ["one", "two"]
    early = hosts.connect("one")
    assert soon(lambda: hosts.rendezvous.not_connected() == ["two"])
    hosts.rendezvous.announce("10.0.0.1:6379")
    late = hosts.connect("two")
    assert soon(lambda: early.ray == late.ray == "10.0.0.1:6379")
    assert early.address == "127.0.0.1"
    assert hosts.rendezvous.addresses() == {"one": "127.0.0.1", "two": "127.0.0.1"}
    late.note("Ray ended and was restarted")
    assert hosts.heard("two: Ray ended and was restarted")
    hosts.rendezvous.end(3, "it failed", seconds=0)
    assert soon(lambda: early.ended == late.ended == JobResult(3, "it failed"))
    assert not early.lost


def test_end_waits_until_all_workers_have_left(hosts: Hosts) -> None:
    link = hosts.connect("one")
    assert soon(lambda: link.connected)
    began = time.monotonic()
    hosts.rendezvous.end(0, "", seconds=0.3)
    assert time.monotonic() - began > 0.25
    link.close()
    hosts.rendezvous.end(0, "", seconds=10)
    assert time.monotonic() - began < 5
    assert not any("does not answer" in line for line in hosts.said)


def test_late_worker_receives_the_result(hosts: Hosts) -> None:
    hosts.rendezvous.end(9, "algo-3 is missing", seconds=0)
    link = hosts.connect("one")
    assert soon(lambda: link.ended == JobResult(9, "algo-3 is missing"))


def test_wrong_secret_is_refused(hosts: Hosts) -> None:
    link = hosts.connect("one", job_secret(["head", "one", "two"], {"RAY_AUTH_TOKEN": "another token"}))
    assert soon(lambda: "RAY_AUTH_TOKEN differs from the head's" in link.lost)
    assert hosts.heard("refused 'one' from 127.0.0.1")
    assert "one" in hosts.rendezvous.not_connected()
    assert not any("token" in line.replace("RAY_AUTH_TOKEN", "") for line in hosts.said)


def test_unknown_host_is_refused(hosts: Hosts) -> None:
    link = hosts.connect("three")
    assert soon(lambda: "not one of the hosts of this job, which are one, two and the head" in link.lost)


def test_second_host_with_the_same_name_is_refused(hosts: Hosts) -> None:
    first = hosts.connect("one")
    assert soon(lambda: first.connected)
    second = hosts.connect("one")
    assert soon(lambda: "a host with this name has joined already" in second.lost)
    assert first.connected


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\x00" * 100, b"[]\n", b'{"hello": "one"}\n', b"x" * 70000]
)
def test_invalid_messages_do_no_harm(hosts: Hosts, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", hosts.rendezvous.port)) as stranger:
        with suppress(OSError):  # the server may close the connection before all is sent
            stranger.sendall(noise)
            stranger.shutdown(socket.SHUT_WR)
        link = hosts.connect("one")
        assert soon(lambda: link.connected)
    assert hosts.rendezvous.not_connected() == ["two"]


def test_secret_is_never_sent_and_replays_fail(hosts: Hosts) -> None:
    with socket.create_connection(("127.0.0.1", hosts.rendezvous.port)) as host:
        lines = host.makefile("rb")
        first = json.loads(lines.readline())["nonce"]
        signed = proof(SECRET, first, "one")
        host.sendall(json.dumps({"hello": "one", "instance": "x", "proof": signed}).encode() + b"\n")
        assert json.loads(lines.readline()) == {"ray": ""}
    with socket.create_connection(("127.0.0.1", hosts.rendezvous.port)) as replayed:
        lines = replayed.makefile("rb")
        assert json.loads(lines.readline())["nonce"] != first
        replayed.sendall(json.dumps({"hello": "one", "instance": "y", "proof": signed}).encode() + b"\n")
        assert "refused" in json.loads(lines.readline())


def test_disconnect_during_the_handshake_can_reconnect(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: JsonConnection, message: dict[str, object]) -> None:
        if "ray" in message:
            raise ConnectionLost("gone")
        whole(self, message)

    whole = JsonConnection.send
    monkeypatch.setattr(JsonConnection, "send", send)
    first = hosts.connect("one", reconnect=20)
    assert hosts.heard("one does not answer")
    monkeypatch.undo()
    assert soon(lambda: first.connected)
    assert hosts.rendezvous.not_connected() == ["two"]


@pytest.mark.usefixtures("quick")
def test_reconnect_after_a_short_cut(hosts: Hosts) -> None:
    link = hosts.connect("one", reconnect=20)
    assert soon(lambda: link.connected)
    port = hosts.rendezvous.port
    hosts.rendezvous.close()
    assert soon(lambda: not link.connected)
    hosts.rendezvous = hosts.open(port)
    assert soon(lambda: link.connected)
    assert not link.lost


@pytest.mark.usefixtures("quick")
def test_head_is_lost_after_the_reconnect_timeout(hosts: Hosts) -> None:
    link = hosts.connect("one")
    assert soon(lambda: link.connected)
    hosts.rendezvous.close()
    assert soon(lambda: bool(link.lost))
    assert f"the head 127.0.0.1 could not be reached on port {hosts.rendezvous.port} for 0.5 s" in link.lost


@pytest.mark.usefixtures("quick")
def test_silent_worker_is_logged_and_then_lost(hosts: Hosts) -> None:
    """Like an unplugged cable: neither side closes the connection."""
    with socket.create_connection(("127.0.0.1", hosts.rendezvous.port)) as host:
        nonce = json.loads(host.makefile("rb").readline())["nonce"]
        hello = {"hello": "one", "instance": "x", "proof": proof(SECRET, nonce, "one")}
        host.sendall(json.dumps(hello).encode() + b"\n")
        assert hosts.heard("one does not answer; waiting 0.5 s for it to reconnect")
        assert soon(lambda: hosts.rendezvous.report_lost_hosts() or len(hosts.said) == 3)
        assert hosts.said[2] == "one is lost; continuing with 1 of 3 hosts"
    back = hosts.connect("one")
    assert soon(lambda: back.connected)
    assert hosts.heard("one reconnected")


@pytest.mark.usefixtures("quick")
def test_heartbeats_keep_an_idle_connection(hosts: Hosts) -> None:
    link = hosts.connect("one")
    assert soon(lambda: link.connected)
    time.sleep(3.5)
    assert link.connected
    assert hosts.said == ["one joined (127.0.0.1)"]


def test_leaving_worker_gives_its_reason(hosts: Hosts) -> None:
    link = hosts.connect("one")
    assert soon(lambda: link.connected)
    link.close("told to stop")
    assert hosts.heard("one left: told to stop")
    assert hosts.rendezvous.left() == {"one": "told to stop"}


def test_unreachable_head_is_lost_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with closing(HeadConnection("127.0.0.1", port, "one", SECRET, timeout=0.3)) as link:
        assert soon(lambda: "for 0.3 s" in link.lost)
        assert "refused" in link.lost


def test_port_in_use_is_named_in_the_error(hosts: Hosts) -> None:
    with pytest.raises(ClusterError, match=f"127.0.0.1:{hosts.rendezvous.port}.*--rendezvous-port"):
        hosts.open(hosts.rendezvous.port)
