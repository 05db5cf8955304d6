"""The connection between the head and the other hosts: who may join, what each learns, and what a cut means."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from dojang.cluster.bootstrap.head_connection import Link
from dojang.cluster.bootstrap.messages import Broken, Wire, job_secret, proof
from dojang.cluster.bootstrap.options import End
from dojang.cluster.bootstrap.rendezvous import Muster
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
    """Silence is noticed at once."""
    monkeypatch.setattr("dojang.cluster.bootstrap.messages.SILENCE", 1.5)
    monkeypatch.setattr("dojang.cluster.bootstrap.head_connection.BEAT", 0.1)


class Field:
    """A head that listens, and hosts that come."""

    def __init__(self, stack: ExitStack) -> None:
        self.said: list[str] = []
        self._stack = stack
        self.muster = self.open()

    def open(self, port: int = 0) -> Muster:
        muster = Muster("127.0.0.1", port, ["one", "two"], SECRET, self.said.append, patience=0.5)
        return self._stack.enter_context(closing(muster))

    def link(self, name: str, secret: bytes = SECRET, timeout: float = 10, patience: float = 0.5) -> Link:
        link = Link("127.0.0.1", self.muster.port, name, secret, timeout, patience)
        return self._stack.enter_context(closing(link))

    def heard(self, text: str) -> bool:
        return soon(lambda: any(text in line for line in self.said))


@pytest.fixture
def field() -> Iterator[Field]:
    with ExitStack() as stack:
        yield Field(stack)


def test_hosts_report_learn_where_ray_is_and_how_it_ended(field: Field) -> None:
    assert field.muster.absent() == ["one", "two"]
    early = field.link("one")
    assert soon(lambda: field.muster.absent() == ["two"])
    field.muster.announce("10.0.0.1:6379")
    late = field.link("two")
    assert soon(lambda: early.ray == late.ray == "10.0.0.1:6379")
    assert early.address == "127.0.0.1"
    assert field.muster.addresses() == {"one": "127.0.0.1", "two": "127.0.0.1"}
    late.note("Ray ended, and is started again")
    assert field.heard("two: Ray ended, and is started again")
    field.muster.end(3, "it failed", seconds=0)
    assert soon(lambda: early.ended == late.ended == End(3, "it failed"))
    assert not early.lost


def test_ending_waits_until_everybody_has_gone(field: Field) -> None:
    link = field.link("one")
    assert soon(lambda: link.connected)
    began = time.monotonic()
    field.muster.end(0, "", seconds=0.3)
    assert time.monotonic() - began > 0.25
    link.close()
    field.muster.end(0, "", seconds=10)
    assert time.monotonic() - began < 5
    assert not any("does not answer" in line for line in field.said)


def test_who_comes_after_the_end_is_told(field: Field) -> None:
    field.muster.end(9, "algo-3 did not come", seconds=0)
    link = field.link("one")
    assert soon(lambda: link.ended == End(9, "algo-3 did not come"))


def test_another_secret_is_turned_away(field: Field) -> None:
    link = field.link("one", job_secret(["head", "one", "two"], {"RAY_AUTH_TOKEN": "another token"}))
    assert soon(lambda: "RAY_AUTH_TOKEN is not the head's" in link.lost)
    assert field.heard("turned away 'one' from 127.0.0.1")
    assert "one" in field.muster.absent()
    assert not any("token" in line.replace("RAY_AUTH_TOKEN", "") for line in field.said)


def test_a_host_that_is_not_of_the_job_is_turned_away(field: Field) -> None:
    link = field.link("three")
    assert soon(lambda: "not one of the hosts of this job, which are one, two and the head" in link.lost)


def test_two_hosts_of_one_name_are_one_too_many(field: Field) -> None:
    first = field.link("one")
    assert soon(lambda: first.connected)
    second = field.link("one")
    assert soon(lambda: "a host of that name is here already" in second.lost)
    assert first.connected


@pytest.mark.parametrize(
    "noise", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\x00" * 100, b"[]\n", b'{"hello": "one"}\n', b"x" * 70000]
)
def test_strangers_do_no_harm(field: Field, noise: bytes) -> None:
    with socket.create_connection(("127.0.0.1", field.muster.port)) as stranger:
        with suppress(OSError):  # whoever says too much may have been hung up on before the end
            stranger.sendall(noise)
            stranger.shutdown(socket.SHUT_WR)
        link = field.link("one")
        assert soon(lambda: link.connected)
    assert field.muster.absent() == ["two"]


def test_the_secret_is_not_sent(field: Field) -> None:
    with socket.create_connection(("127.0.0.1", field.muster.port)) as host:
        lines = host.makefile("rb")
        first = json.loads(lines.readline())["nonce"]
        signed = proof(SECRET, first, "one")
        host.sendall(json.dumps({"hello": "one", "instance": "x", "proof": signed}).encode() + b"\n")
        assert json.loads(lines.readline()) == {"ray": ""}
    with socket.create_connection(("127.0.0.1", field.muster.port)) as replayed:
        lines = replayed.makefile("rb")
        assert json.loads(lines.readline())["nonce"] != first
        replayed.sendall(json.dumps({"hello": "one", "instance": "y", "proof": signed}).encode() + b"\n")
        assert "refused" in json.loads(lines.readline())


def test_a_host_that_goes_before_it_is_greeted_can_come_again(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: Wire, message: dict[str, object]) -> None:
        if "ray" in message:
            raise Broken("gone")
        whole(self, message)

    whole = Wire.send
    monkeypatch.setattr(Wire, "send", send)
    first = field.link("one", patience=20)
    assert field.heard("one does not answer")
    monkeypatch.undo()
    assert soon(lambda: first.connected)
    assert field.muster.absent() == ["two"]


@pytest.mark.usefixtures("quick")
def test_a_link_that_was_cut_for_a_while_is_back(field: Field) -> None:
    link = field.link("one", patience=20)
    assert soon(lambda: link.connected)
    port = field.muster.port
    field.muster.close()
    assert soon(lambda: not link.connected)
    field.muster = field.open(port)
    assert soon(lambda: link.connected)
    assert not link.lost


@pytest.mark.usefixtures("quick")
def test_a_head_that_stays_away_is_lost(field: Field) -> None:
    link = field.link("one")
    assert soon(lambda: link.connected)
    field.muster.close()
    assert soon(lambda: bool(link.lost))
    assert f"the head, 127.0.0.1, has not been reached on port {field.muster.port} for 0.5 s" in link.lost


@pytest.mark.usefixtures("quick")
def test_a_host_that_falls_silent_is_named_and_then_lost(field: Field) -> None:
    """As with a cable pulled out: nobody closes the connection."""
    with socket.create_connection(("127.0.0.1", field.muster.port)) as host:
        nonce = json.loads(host.makefile("rb").readline())["nonce"]
        hello = {"hello": "one", "instance": "x", "proof": proof(SECRET, nonce, "one")}
        host.sendall(json.dumps(hello).encode() + b"\n")
        assert field.heard("one does not answer; waiting 0.5 s for it to come back")
        assert soon(lambda: field.muster.watch() or len(field.said) == 3)
        assert field.said[2] == "one is lost; going on with 1 of 3 hosts"
    back = field.link("one")
    assert soon(lambda: back.connected)
    assert field.heard("one is back")


@pytest.mark.usefixtures("quick")
def test_beats_keep_a_quiet_connection(field: Field) -> None:
    link = field.link("one")
    assert soon(lambda: link.connected)
    time.sleep(3.5)
    assert link.connected
    assert field.said == ["one is here (127.0.0.1)"]


def test_who_leaves_says_why(field: Field) -> None:
    link = field.link("one")
    assert soon(lambda: link.connected)
    link.close("told to stop")
    assert field.heard("one leaves: told to stop")
    assert field.muster.left() == {"one": "told to stop"}


def test_nobody_at_home_is_said_within_the_time_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with closing(Link("127.0.0.1", port, "one", SECRET, timeout=0.3)) as link:
        assert soon(lambda: "for 0.3 s" in link.lost)
        assert "refused" in link.lost


def test_a_port_in_use_is_an_error_that_names_it(field: Field) -> None:
    with pytest.raises(ClusterError, match=f"127.0.0.1:{field.muster.port}.*--muster-port"):
        field.open(field.muster.port)
