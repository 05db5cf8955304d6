"""A tracker by the user's own code: an object with `metrics(step, values)`, told by the background thread."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dojang.core.errors import ConfigError
from dojang.core.section import load_object, make_object
from dojang.track.exporter import Row

__all__ = ["CustomSink", "check_custom"]

KEY = "track.custom"


def check_custom(spec: str) -> None:
    """ConfigError if `package.module:object` names nothing that makes a tracker. Nothing is made yet."""
    found = load_object(spec, KEY)
    if not callable(found):
        raise ConfigError(f"{KEY}={spec!r} is {found!r}, which cannot be called; name a class or a function")
    if isinstance(found, type) and not callable(getattr(found, "metrics", None)):
        raise _lacks_metrics(spec, found)


class CustomSink:
    """A Sink that tells an object of the user's, which is made when the run starts."""

    name = "custom"

    def __init__(self, spec: str, options: Mapping[str, Any]) -> None:
        self.address = spec
        self._options = dict(options)
        self._tracker: Any = None

    def begin(self, memory: dict[str, Any], keep: Callable[[], None]) -> None:
        tracker = make_object(self.address, KEY, **self._options)
        if not callable(getattr(tracker, "metrics", None)):
            raise _lacks_metrics(self.address, type(tracker))
        self._tracker = tracker

    def tell(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._tracker.metrics(row.step, row.values)

    def end(self, status: str) -> str:
        tracker, self._tracker = self._tracker, None
        if callable(close := getattr(tracker, "close", None)):
            close()
        return ""

    def close(self) -> None:
        with suppress(Exception):  # nobody tries again after this
            self.end("")


def _lacks_metrics(spec: str, found: type) -> ConfigError:
    return ConfigError(
        f"{KEY}={spec!r}: {found.__name__} has no metrics(step, values), the method that gets the figures of a step"
    )
