"""`dojang serve rollouts`: a rollout worker, until its run ends or a signal comes."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dojang.build import serve_worker
from dojang.build.worker_config import check_overrides, worker_config
from dojang.core.child_process import PARENT_VARIABLE, end_with_parent
from dojang.core.errors import ConfigError, Interrupted
from dojang.rollout_service.client import TOKEN_VARIABLE

if TYPE_CHECKING:
    from dojang.build.rollout_worker import BuiltWorker

__all__ = ["serve", "work"]

logger = logging.getLogger(__name__)


def serve(url: str, overrides: Sequence[str], *, timeout_s: float, alone: bool) -> None:
    """Joins the run at a URL, and works until it ends. `alone`: no other process uses the GPU."""
    check_overrides(overrides)
    if parent := os.environ.pop(PARENT_VARIABLE, ""):
        end_with_parent(int(parent))
    if not (token := os.environ.get(TOKEN_VARIABLE, "")):
        raise ConfigError(f"set {TOKEN_VARIABLE} to the token of the run, which `dojang train --print-join` prints")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    description = asyncio.run(serve_worker.describe_run(url, token, timeout_s))
    config = worker_config(description, overrides)
    from dojang.build.rollout_worker import build_worker  # loads torch

    worker = build_worker(description, config, alone=alone)
    logger.info("joining %s, %d groups at a time", url, worker.parts.slots)
    asyncio.run(work(worker, url, token, timeout_s))
    logger.info("done")


async def work(worker: "BuiltWorker", url: str, token: str, timeout_s: float) -> None:
    """Works until the run ends or a signal comes; closes the worker's parts."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    working = asyncio.create_task(serve_worker.work(worker, url, token, timeout_s, stop))

    def ask_to_stop() -> None:
        if stop.is_set():
            working.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask_to_stop)
    try:
        await working
    except asyncio.CancelledError:
        raise Interrupted("told to stop twice: the groups under way go to other workers") from None
