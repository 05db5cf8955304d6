"""Base of trainers that forward to other trainers: every method of Trainer is one call of `_call`.

A new method of Trainer needs one line here, and none in the trainers that forward.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from dojang.protocols import Trainer

__all__ = ["ForwardingTrainer"]

P = ParamSpec("P")
T = TypeVar("T")


def _forward(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["ForwardingTrainer", P], Coroutine[Any, Any, T]]:
    """A method with the signature of Trainer's, that calls `_call` with its name."""

    async def forwarded(self: "ForwardingTrainer", /, *arguments: P.args, **named: P.kwargs) -> T:
        found: T = await self._call(method.__name__, *arguments, **named)
        return found

    return forwarded


class ForwardingTrainer(ABC):
    """A Trainer whose subclasses say how a call is sent; they override the methods that need more than that."""

    forward_backward = _forward(Trainer.forward_backward)
    optim_step = _forward(Trainer.optim_step)
    skip_steps = _forward(Trainer.skip_steps)
    take_token_values = _forward(Trainer.take_token_values)
    score = _forward(Trainer.score)
    compute_values = _forward(Trainer.compute_values)
    ref_logprobs = _forward(Trainer.ref_logprobs)
    teacher_logprobs = _forward(Trainer.teacher_logprobs)
    publish = _forward(Trainer.publish)
    save = _forward(Trainer.save)
    restore = _forward(Trainer.restore)
    close = _forward(Trainer.close)

    @abstractmethod
    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call the method of this name where the model is trained; returns its result."""
