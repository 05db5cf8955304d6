"""Custom tracker (`track.custom`): a user's object with `metrics(step, values)`, called by the exporter thread."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dojang.core.errors import ConfigError
from dojang.core.section import load_object, make_object
from dojang.track.exporter import Row, Sink

__all__ = ["CustomSink", "check_custom"]

KEY = "track.custom"


def check_custom(spec: str) -> None:
    """Raises ConfigError unless `package.module:object` names a class or function. Does not call it."""
    found = load_object(spec, KEY)
    if not callable(found):
        raise ConfigError(f"{KEY}={spec!r} is {found!r}, which cannot be called; name a class or a function")
    if isinstance(found, type) and not callable(getattr(found, "metrics", None)):
        raise _lacks_metrics(spec, found)


class CustomSink(Sink):
    """A Sink that passes rows to the user's tracker, created when the run starts."""

    name = "custom"

    def __init__(self, spec: str, options: Mapping[str, Any]) -> None:
        self.address = spec
        self._options = dict(options)
        self._tracker: Any = None

    def start(self, state: dict[str, Any], save_state: Callable[[], None]) -> None:
        tracker = make_object(self.address, KEY, **self._options)
        if not callable(getattr(tracker, "metrics", None)):
            raise _lacks_metrics(self.address, type(tracker))
        self._tracker = tracker

    def write_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._tracker.metrics(row.step, row.values)

    def finish(self, status: str) -> str:
        tracker, self._tracker = self._tracker, None
        if callable(close := getattr(tracker, "close", None)):
            close()
        return ""

    def close(self) -> None:
        with suppress(Exception):  # no retry after close
            self.finish("")


def _lacks_metrics(spec: str, found: type) -> ConfigError:
    return ConfigError(
        f"{KEY}={spec!r}: {found.__name__} has no metrics(step, values), the method that receives the metrics of a step"
    )
