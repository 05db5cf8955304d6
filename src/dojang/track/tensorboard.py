"""Writes TensorBoard event files, in whole records, so that a full disk leaves no truncated one."""

import io
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from dojang.core.run_dir import EVALUATION, append_whole
from dojang.track.exporter import Row, Sink

__all__ = ["TensorboardSink"]

VERSION = "brain.Event:2"
"""Format version, which readers expect in the first record of a file."""


class TensorboardSink(Sink):
    """A Sink that writes one event file for each process of a run (the first one and each resume)."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        self.address = str(folder.resolve())
        self._folder = folder
        self._file: Path | None = None

    def write_rows(self, rows: Sequence[Row]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        buffer = io.BytesIO()
        records = RecordWriter(buffer)
        file = self._file
        if file is None:
            now = time.time()
            file = self._folder / f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
            restart = SessionLog(status=SessionLog.START)  # readers then discard their data from this step on
            records.write(Event(wall_time=now, file_version=VERSION).SerializeToString())
            records.write(Event(wall_time=now, step=_restart_step(rows[0]), session_log=restart).SerializeToString())
        for row in rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            event = Event(wall_time=row.read_at, step=row.step, summary=Summary(value=values))
            records.write(event.SerializeToString())
        self._folder.mkdir(parents=True, exist_ok=True)  # every time: it may have been deleted
        append_whole(file, buffer.getvalue())
        self._file = file


def _restart_step(row: Row) -> int:
    """Returns the first step that is written again: an evaluation follows the training step of the same number."""
    return row.step + any(name.startswith(EVALUATION) for name in row.values)
