"""Runs a rollout worker: `dojang serve rollouts`, and worker actors on Ray."""

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from dojang.rollout_service.client import ServiceClient
from dojang.rollout_service.messages import RunDescription

if TYPE_CHECKING:  # it imports torch
    from dojang.build.rollout_worker import BuiltWorker

__all__ = ["describe_run", "work"]


async def describe_run(url: str, token: str, timeout_s: float) -> RunDescription:
    """Returns the settings of the run at a URL. ClusterError if it does not answer within `timeout_s`."""
    client = ServiceClient(url, token, timeout_s=timeout_s)
    try:
        return await client.describe()
    finally:
        await client.close()


async def work(worker: "BuiltWorker", url: str, token: str, timeout_s: float, stop: asyncio.Event) -> None:
    """Works until the run ends; closes the worker's parts. When `stop` is set, it finishes its groups and leaves."""
    from dojang.rollout_service.worker import RolloutWorker

    async with AsyncExitStack() as cleanup:
        cleanup.push_async_callback(worker.close)
        client = ServiceClient(url, token, timeout_s=timeout_s)
        cleanup.push_async_callback(client.close)
        await RolloutWorker(client, worker.parts, stop).run()
