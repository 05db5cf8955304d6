"""A reward that takes its time, so that a run of a few small steps lasts long enough to be watched."""

import asyncio

from dojang.types import Problem


async def patient(problem: Problem, text: str) -> float:
    await asyncio.sleep(0.7)
    return 0.0
