"""Sessions as lines of JSON: tokens, log-probs, weight versions and rewards, for use elsewhere."""

import json
from pathlib import Path
from typing import Any

from dojang.core.paths import writable
from dojang.environments.policy_server.session import Session
from dojang.environments.token_stream import TokenStream

__all__ = ["SESSIONS", "Recorder", "to_record"]

SESSIONS = "sessions.jsonl"


def to_record(name: str, session: Session) -> dict[str, Any]:
    """Returns a session as JSON. A session without a reward has the reward null."""
    result = session.result
    return {
        "session": name,
        "ended": session.ended,
        "reward": None if result is None else result.reward,
        "solved": None if result is None else result.solved,
        "parts": {} if result is None else dict(result.parts),
        "streams": [_stream(each) for each in session.streams],
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
    """Appends sessions to a file. A line is written at once, so an interrupted server leaves whole lines."""

    def __init__(self, directory: Path) -> None:
        """Raises ConfigError if the directory cannot be written."""
        with writable("--record", directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._file = (directory / SESSIONS).open("ab", buffering=0)

    def add(self, name: str, session: Session) -> None:
        """Appends a session in which something was sampled."""
        if session.streams:
            self._file.write((json.dumps(to_record(name, session)) + "\n").encode())

    def close(self) -> None:
        self._file.close()
