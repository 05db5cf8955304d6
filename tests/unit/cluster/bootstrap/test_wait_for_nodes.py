"""Waiting for the nodes of a job, with a fake Ray."""

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from dojang.cluster.bootstrap import wait_for_nodes
from dojang.cluster.bootstrap.wait_for_nodes import NodeWait


def test_workers_start_ray_after_the_head_s_node_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open port is not enough: a worker's Ray ends if the head's own node is not registered within seconds."""
    events: list[str] = []

    class NodeCheck:
        """Reports no node at first, then one more at each call."""

        looks = 0

        def __init__(self, *_: Any) -> None:
            return None

        def alive(self) -> dict[str, str]:
            self.looks += 1
            if self.looks < 3:
                events.append("no node")
                return {}
            return {"one": "10.0.0.1"} | ({"two": "10.0.0.2"} if "announced" in events else {})

        def close(self) -> None:
            return None

    monkeypatch.setattr(wait_for_nodes, "NodeCheck", NodeCheck)
    monkeypatch.setattr(wait_for_nodes, "_TICK", 0.01)
    rendezvous: Any = SimpleNamespace(
        announce=lambda ray: events.append("announced"),
        left=dict,
        addresses=lambda: {"two": "10.0.0.2"},
        not_connected=set,
        expected=["two"],
        port=1,
    )
    node: Any = SimpleNamespace(restart_if_ended=lambda: "")
    stop: Any = SimpleNamespace(wait=lambda seconds: None)
    with socket.create_server(("127.0.0.1", 0)) as ray:
        address, deadline = f"127.0.0.1:{ray.getsockname()[1]}", time.monotonic() + 5
        found = NodeWait("one", address, rendezvous, node, stop, events.append, 5, deadline).wait({})
    assert found == {"one": "10.0.0.1", "two": "10.0.0.2"}
    assert events == ["no node", "no node", "announced"]
