"""A rollout service over real connections, with a fake trainer, fake engines and a fake workflow."""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import httpx
import torch

from dojang.core.http_service import HttpServer, address_of, open_listener
from dojang.loop.ledger import Ledger
from dojang.loop.rollout_queue import RolloutQueue
from dojang.protocols import ServingEngine
from dojang.rollout_service.client import ServiceClient
from dojang.rollout_service.messages import JoinReply, JoinRequest, ModelDescription, RunDescription
from dojang.rollout_service.server import RolloutService, ServedRun
from dojang.rollout_service.worker import WorkerParts
from dojang.types import Group, Message, Outcome, Problem, Sample, Span, Verdict
from dojang.weight_sync.versions import WeightVersions
from weight_soak import DictEngine

TOKEN = "secret"
PATIENCE = 20.0
"""Timeout for things that should happen at once, long enough for a busy machine."""
CONFIG = {"seed": 1}
MODEL = ModelDescription(architecture={"hidden_size": 8}, tokenizer="digest")


def description_of(*policies: str) -> RunDescription:
    return RunDescription(dojang="1.0", config=CONFIG, models=dict.fromkeys(policies, MODEL))


def join_of(*policies: str, name: str = "here:1") -> JoinRequest:
    """Request of a worker that fits the run."""
    return JoinRequest(name=name, dojang="1.0", run=description_of(*policies).digest, data="data")


JOIN = join_of("policy")


def problem_of(prompt_index: int) -> Problem:
    return Problem(f"sums/{prompt_index}", "sums", (Message("user", f"{prompt_index}+1?"),), str(prompt_index + 1))


def group_of(prompt_index: int, *versions: int) -> Group:
    """A group of one sample, with a token of each version."""
    size = len(versions)
    sample = Sample(
        tokens=tuple(range(2, 2 + size)),
        mask=(True,) * size,
        logprobs=(-1.0,) * size,
        text="",
        finish="stop",
        version=versions[-1],
        verdict=Verdict(Outcome.ACCEPTED, 1.0),
        spans=tuple(Span(version, at, at + 1) for at, version in enumerate(versions)),
    )
    return Group(problem_of(prompt_index), prompt_index, (sample,))


def tensors(version: int) -> dict[str, torch.Tensor]:
    """Weights of which few change from version to version."""
    found = {"a": torch.zeros(200, 100), "b": torch.ones(30)}
    found["a"].view(-1)[:version] = torch.arange(1, version + 1, dtype=torch.float32)
    return found


def queue_of(size: int = 2, lag: int = 1, *, lease_s: float = math.inf, steps: int | None = None) -> RolloutQueue:
    return RolloutQueue(Ledger(size, lag, steps=steps), has_signal=lambda group: True, lease_s=lease_s)


def store_of(*versions: int, deltas: int = 8) -> WeightVersions:
    store = WeightVersions(torch.float32, keep=4, deltas=deltas)
    for version in versions:
        store.publish(version, tensors(version))
    return store


def run_of(*policies: str, **options: Any) -> ServedRun:
    names = policies or ("policy",)
    return replace(
        ServedRun(
            description=description_of(*names),
            data="data",
            problem=problem_of,
            weights={name: store_of(0) for name in names},
            token=TOKEN,
            timeout_s=PATIENCE,
        ),
        **options,
    )


@asynccontextmanager
async def served(run: ServedRun, queue: RolloutQueue, port: int = 0) -> AsyncIterator[tuple[str, RolloutService]]:
    listener = open_listener("127.0.0.1", port)
    service = RolloutService(run)
    service.begin(queue)
    server = HttpServer(service.app())
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield address_of(listener), service
    finally:
        server.should_exit = server.force_exit = True
        await serving


@asynccontextmanager
async def client_of(url: str, token: str = TOKEN, timeout_s: float = PATIENCE) -> AsyncIterator[ServiceClient]:
    client = ServiceClient(url, token, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def joined(run: ServedRun, queue: RolloutQueue) -> AsyncIterator[tuple[ServiceClient, JoinReply]]:
    """A client that has joined."""
    async with served(run, queue) as (url, _), client_of(url) as client:
        yield client, await client.join(JOIN)


@asynccontextmanager
async def caller(url: str, token: str = TOKEN) -> AsyncIterator[httpx.AsyncClient]:
    """Plain HTTP, for requests that the client would not send."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False) as http:
        yield http


def delivery(worker: str, index: int, body: bytes, attempt: int = 0, **changed: str) -> dict[str, Any]:
    """Arguments of a delivery by plain HTTP."""
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    query = {"worker": worker, "prompt_index": str(index), "attempt": str(attempt), "digest": digest}
    return {"content": body, "params": {**query, **changed}}


class FakeEngine(DictEngine):
    """An engine that holds other weights than the run."""

    def __init__(self) -> None:
        super().__init__({key: tensor - 1 for key, tensor in tensors(0).items()})
        self.version, self.closed = -1, False

    async def close(self) -> None:
        self.closed = True


@dataclass
class FakeWorkflow:
    """Answers with the versions that its engines hold at the beginning and at the end."""

    engines: dict[str, FakeEngine]
    work: Callable[[int], Coroutine[Any, Any, None]]
    ran: list[int] = field(default_factory=list)

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        assert problem == problem_of(prompt_index)
        self.ran.append(prompt_index)
        first = min(engine.version for engine in self.engines.values())
        await self.work(prompt_index)
        last = min(engine.version for engine in self.engines.values())
        assert not any(engine.dirty for engine in self.engines.values())
        return group_of(prompt_index, first, last)


async def at_once(prompt_index: int) -> None:
    await asyncio.sleep(0)


def parts_of(
    *policies: str, work: Callable[[int], Coroutine[Any, Any, None]] = at_once, slots: int = 4, name: str = "here:1"
) -> tuple[WorkerParts, FakeWorkflow]:
    """Parts of a worker with fake engines and a fake workflow."""
    engines = {each: FakeEngine() for each in policies}
    workflow = FakeWorkflow(engines, work)
    parts = WorkerParts(
        join=join_of(*policies, name=name),
        engines={each: cast(ServingEngine, engine) for each, engine in engines.items()},
        workflow=workflow,
        problem=problem_of,
        slots=slots,
    )
    return parts, workflow


async def train(queue: RolloutQueue, weights: Mapping[str, WeightVersions], steps: int) -> list[list[int]]:
    """A trainer that learns at once, and publishes."""
    batches = []
    for step in range(steps):
        batch = await queue.next_batch()
        batches.append([group.prompt_index for group in batch])
        for store in weights.values():
            store.publish(step + 1, tensors(step + 1))
        queue.publish(step + 1)
        queue.learn(step)
        await asyncio.sleep(0.01)
    return batches


def play(work: Coroutine[Any, Any, None]) -> None:
    """Runs a test, with a limit."""

    async def limited() -> None:
        async with asyncio.timeout(3 * PATIENCE):
            await work

    asyncio.run(limited())
