"""ForwardingTrainer."""

import asyncio
import inspect
from typing import Any

import pytest

from dojang.protocols import Trainer
from dojang.trainer.forwarding import ForwardingTrainer

METHODS = [name for name, member in vars(Trainer).items() if inspect.iscoroutinefunction(member)]


class Recorder(ForwardingTrainer):
    """Returns what it was called with."""

    async def _call(self, method: str, *arguments: Any) -> Any:
        return method, arguments


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_trainer_is_forwarded_with_its_arguments(name: str) -> None:
    arguments = tuple(range(len(inspect.signature(getattr(Trainer, name)).parameters) - 1))
    assert asyncio.run(getattr(Recorder(), name)(*arguments)) == (name, arguments)


def test_a_subclass_can_override_a_method_and_still_forward_it() -> None:
    class Closing(Recorder):
        async def publish(self, version: int) -> None:
            return await super().publish(version + 1)

    assert asyncio.run(Closing().publish(3)) == ("publish", (4,))  # type: ignore[func-returns-value]
