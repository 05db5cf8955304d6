"""Event files for TensorBoard. They are written whole rows at a time, so that a full disk leaves no torn record."""

import io
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dojang.core.run_dir import EVALUATION, append_whole
from dojang.track.exporter import Row

__all__ = ["TensorboardSink"]

VERSION = "brain.Event:2"
"""Of the format; what readers expect as the first record of a file."""


class TensorboardSink:
    """A Sink that writes one file of events in each life of a run."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self.address = str(folder.resolve())
        self._folder = folder
        self._file: Path | None = None

    def begin(self, memory: dict[str, Any], keep: Callable[[], None]) -> None:
        return None

    def tell(self, rows: Sequence[Row]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        buffer = io.BytesIO()
        records = RecordWriter(buffer)
        file = self._file
        if file is None:
            now = time.time()
            file = self._folder / f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
            restart = SessionLog(status=SessionLog.START)  # readers forget what they have from this step on
            records.write(Event(wall_time=now, file_version=VERSION).SerializeToString())
            records.write(Event(wall_time=now, step=_anew(rows[0]), session_log=restart).SerializeToString())
        for row in rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            event = Event(wall_time=row.seen, step=row.step, summary=Summary(value=values))
            records.write(event.SerializeToString())
        self._folder.mkdir(parents=True, exist_ok=True)  # always: it may have been cleared away
        append_whole(file, buffer.getvalue())
        self._file = file

    def end(self, status: str) -> str:
        return ""

    def close(self) -> None:
        return None


def _anew(row: Row) -> int:
    """The first step that is told anew: an evaluation comes after the training step of the same number."""
    return row.step + any(name.startswith(EVALUATION) for name in row.values)
