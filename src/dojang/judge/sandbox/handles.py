"""Handles: objects in the program's process that a test uses from its own process.

Part of zygote.py: imports the standard library only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["ProgramObject"]

_SINGLY = 64
"""Number of items fetched one at a time. Later ones are read ahead, because each request takes about 50 us."""
_MOST_AHEAD = 1024


class ProgramObject:
    """A handle. The program answers for its object; a test compares its expectations with plain data only.

    Operators missing here raise TypeError, even if the object's class has them: the program could return anything.
    """

    __slots__ = ("_ahead", "_ask", "_handle", "_seen")

    def __init__(self, ask: Callable[..., Any], handle: int) -> None:
        items: deque[Any] = deque()
        for name, value in (("_ask", ask), ("_handle", handle), ("_ahead", items), ("_seen", 0)):
            object.__setattr__(self, name, value)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._ask("call", self, arguments, options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"a test cannot read {name} of a program's object")
        return self._ask("get", self, (name,))

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", self, (name, value))

    def __iter__(self) -> Any:
        return self._ask("iter", self)

    def __next__(self) -> Any:
        if not self._ahead:
            count = 1 if self._seen < _SINGLY else min(self._seen, _MOST_AHEAD)
            self._ahead.extend(self._ask("next", self, (count,)))
        if not self._ahead:
            raise StopIteration
        object.__setattr__(self, "_seen", self._seen + 1)
        return self._ahead.popleft()

    def __bool__(self) -> bool:
        return self._ask("bool", self) is True

    def __len__(self) -> Any:
        return self._ask("len", self)

    def __getitem__(self, index: Any) -> Any:
        return self._ask("item", self, (index,))

    def __str__(self) -> str:
        return str(self._ask("str", self))

    def __repr__(self) -> str:
        return str(self._ask("repr", self))

    def __format__(self, spec: str) -> str:
        return str(self._ask("format", self, (spec,)))

    def __instancecheck__(self, instance: Any) -> bool:
        return self._ask("isinstance", self, (instance,)) is True

    def __eq__(self, other: object) -> Any:
        """Compare in the program if both are its objects; a plain value never equals a program's object."""
        return self._ask("eq", self, (other,)) is True if isinstance(other, ProgramObject) else NotImplemented

    def __hash__(self) -> int:
        return int(self._ask("hash", self))
