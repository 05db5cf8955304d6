"""Commands for the head of a cluster: `job.py NAME ARGUMENTS...`."""

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import ray

from dojang.cluster.ray.actors import ActorLost, gather, start_actor_on
from dojang.cluster.ray.placement import nodes


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


@ray.remote(num_cpus=1, max_retries=5)
def where(seconds: float = 0.5) -> str:
    time.sleep(seconds)
    return socket.gethostname()


@ray.remote(num_cpus=0)
def settings() -> str:
    return f"auth {os.environ['RAY_AUTH_MODE']}, interface {os.environ.get('NCCL_SOCKET_IFNAME')}"


def everywhere() -> list[str]:
    """Run a task on each node that is alive."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    pinned = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    return sorted(ray.get([where.options(num_cpus=0, scheduling_strategy=each).remote() for each in pinned]))


def outlive(orders: str) -> None:
    hosts = everywhere()
    say(ray.get(settings.remote()))
    say(f"on {len(hosts)} nodes: {' '.join(hosts)}")
    work = [where.options(scheduling_strategy="SPREAD").remote(3) for _ in range(6)]
    while not Path(orders, "count").exists():
        time.sleep(0.1)
    say(f"still {len(everywhere())} nodes")
    while not Path(orders, "work").exists():
        time.sleep(0.1)
    work += [where.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
    say(f"all work done on {' '.join(sorted(set(ray.get(work[-4:]))))}, {len(ray.get(work))} pieces")


def fail() -> None:
    hosts = set(ray.get([where.options(scheduling_strategy="SPREAD").remote() for _ in range(8)]))
    say(f"RAN on {socket.gethostname()}, work on {' '.join(sorted(hosts))}")
    Path(os.environ["SAGEMAKER_BASE_DIR"], "output/failure").write_text("the rewards were all equal\n")
    raise SystemExit(3)


def save(path: str) -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    say(f"computing on {ray.get(where.remote())}")
    while not told:
        time.sleep(0.1)
    Path(path).write_text(f"with help of {ray.get(where.remote(2))}")
    raise SystemExit(130)


class Slow:
    """Takes its time to answer."""

    async def answer(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "answered"


def ask(seconds: str) -> None:
    """Somebody on another host, who answers after so many seconds."""
    here = ray.get_runtime_context().get_node_id()
    actor = start_actor_on(next(node for node in nodes() if node.id != here), "Slow")
    gather([actor], [actor.make(Slow)], 100)
    say("asked")
    sys.stdout.flush()
    began = time.monotonic()
    try:
        found = asyncio.run(actor.call("answer", float(seconds)))
    except ActorLost as error:
        found = f"lost: {error}"
    say(f"after {time.monotonic() - began:.0f} s {found}")


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    {"ask": ask, "outlive": outlive, "fail": fail, "save": save}[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
