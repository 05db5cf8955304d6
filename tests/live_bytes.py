"""Memory of the tensors that an operation makes."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes", "live_bytes"]


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages that operators of this thread have made, while they are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = weakref.WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(
        self, operator: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for given in self._storages((args, kwargs)):
            self._known.add(given)  # made before, or counted already
        found = operator(*args, **(kwargs or {}))
        for made in self._storages(found):
            if made not in self._known:
                self._known.add(made)
                self.now += made.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(made, self._free, made.nbytes())
        return found

    def _free(self, size: int) -> None:
        self.now -= size

    @staticmethod
    def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
        for each in tree_leaves(tree):
            if isinstance(each, torch.Tensor) and each.device.type != "meta":
                yield each.untyped_storage()


@contextmanager
def live_bytes() -> Iterator[LiveBytes]:
    """Counts inside this context."""
    with LiveBytes() as counted:
        yield counted
