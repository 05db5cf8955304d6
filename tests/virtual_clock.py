"""An event loop whose clock jumps to the next timer: sleeps take no time, and their sums are exact."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

__all__ = ["run_virtually"]

T = TypeVar("T")


class _Loop(asyncio.SelectorEventLoop):
    """Advances its clock whenever nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and not self._stopping:  # type: ignore[attr-defined]
            assert self._scheduled, "every task waits, and no timer is set"  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtually(monkeypatch: pytest.MonkeyPatch, work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine with virtual time, in `time.monotonic` too. Work for threads runs at once."""
    loop = _Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner, monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", loop.time)
        return runner.run(work)
