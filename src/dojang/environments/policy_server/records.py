"""Sessions as lines of JSON: tokens, log-probs, weight versions and rewards, for use elsewhere."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dojang.core.errors import ConfigError
from dojang.core.paths import writable
from dojang.environments.policy_server.session import Session
from dojang.environments.token_stream import TokenStream

__all__ = ["SESSIONS", "Recorder", "to_record"]

SESSIONS = "sessions.jsonl"
_HEAD = b'{"session": "'
_START = re.compile(re.escape(_HEAD) + rb'([A-Za-z0-9._-]+)"')


def to_record(name: str, session: Session) -> dict[str, Any]:
    """Returns a session as JSON. A session without a reward has the reward null."""
    result = session.result
    return {
        "session": name,
        "ended": session.ended,
        "reward": None if result is None else result.reward,
        "solved": None if result is None else result.solved,
        "parts": {} if result is None else dict(result.parts),
        "streams": [_stream(each) for each in session.trained_streams(result)],
    }


def _stream(stream: TokenStream) -> dict[str, Any]:
    versions: list[int | None] = [None] * len(stream.tokens)
    for span in stream.spans:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    return {
        "tokens": stream.tokens,
        "sampled": stream.mask,
        "logprobs": stream.logprobs,
        "versions": versions,
        "turns": [{"role": each.role, "start": each.start, "end": each.end} for each in stream.turns],
        "finish": stream.finish,
        "text": stream.texts,
    }


class Recorder:
    """Appends sessions to a file, each as a whole line or not at all."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError if the directory cannot be written, or another server writes to it."""
        self._path = directory / SESSIONS
        with writable("--record", directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # ends with the process at the latest
        except BlockingIOError:
            self._file.close()
            raise ConfigError(
                f"--record: another server writes to {self._path}; end it, or choose another directory"
            ) from None
        except OSError:
            pass  # a file system without locks

    def names(self) -> Iterator[str]:
        """Yields the names of the recorded sessions, without parsing their tokens. A last line that was cut, such as by
        a power failure, is removed: its session was not recorded. Raises ConfigError if the file has anything else."""
        size = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n") and _HEAD.startswith(line[: len(_HEAD)]):
                    self._file.truncate(size)
                    return
                found = _START.match(line)
                if found is None:
                    raise ConfigError(
                        f"--record: line {number} of {self._path} is no session: {line[:80]!r}; "
                        "choose another directory"
                    )
                size += len(line)
                yield found[1].decode()

    def add(self, name: str, session: Session) -> None:
        """Appends a session in which something was sampled. Raises ConfigError if that fails."""
        if not session.streams:
            return
        rest = memoryview((json.dumps(to_record(name, session)) + "\n").encode())
        size = os.fstat(self._file.fileno()).st_size
        with writable("--record", self._path):
            try:
                while rest:  # a disk that is almost full takes a part, and fails at the next write
                    rest = rest[self._file.write(rest) :]
            except BaseException:
                self._file.truncate(size)
                raise

    def close(self) -> None:
        self._file.close()
