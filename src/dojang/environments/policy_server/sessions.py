"""Open sessions by key: inside a run, and stand-alone."""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from dojang.core.errors import DojangError
from dojang.environments.policy_server.requests import RequestRefused
from dojang.environments.policy_server.session import Session

__all__ = ["Gate", "RunSessions", "ServedSessions"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SWEEP_S = 1.0


class Gate(Protocol):
    """Decides which session a request belongs to."""

    def find(self, key: str, name: str | None, *, new: bool = True) -> Session:
        """Session of a request, from its API key or the name in its path; `new`: it may begin with this request. Raises
        RequestRefused."""

    @property
    def by_model(self) -> Mapping[str, Session]:
        """Sessions that a request may also name by its model."""

    def ended(self, session: Session) -> None:
        """Called when a request has ended a session."""


def _unauthorized() -> RequestRefused:
    return RequestRefused(401, "the API key is wrong, or its session has ended", "invalid_api_key")


class RunSessions:
    """Sessions of a run: each has an unguessable key, which is also its name."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}

    @contextmanager
    def open(self, session: Session) -> Iterator[str]:
        """Opens a session for as long as its agent runs; yields its key."""
        key = f"dojang-{secrets.token_urlsafe(24)}"
        self._open[key] = session
        try:
            yield key
        finally:
            del self._open[key]
            session.end("its agent has ended")

    def find(self, key: str, name: str | None, *, new: bool = True) -> Session:
        try:
            return self._open[name or key]
        except KeyError:
            raise _unauthorized() from None

    @property
    def by_model(self) -> Mapping[str, Session]:
        """All, by their keys: verifiers keeps a pool of connections for every API key, but not for every model."""
        return self._open

    def ended(self, session: Session) -> None:
        """The workflow takes its result."""


class ServedSessions:
    """Sessions of `dojang serve policy`. The key is TOKEN or TOKEN:NAME; without a name, in the key or the path, every
    request is a new session, which is not recorded. A name is used for one session only."""

    def __init__(
        self,
        make: Callable[[], Session],
        finish: Callable[[str, Session], None],
        *,
        token: str | None,
        timeout_s: float,
        ended: Iterable[str] = (),
    ) -> None:
        """`finish` is called with every named session: after its reward, its end or its timeout, and again if it raises
        a DojangError, such as for a full disk. `ended` are the names of sessions that have ended before."""
        self._make, self._finish, self._token, self._timeout_s = make, finish, token, timeout_s
        self._open: dict[str, tuple[Session, float]] = {}
        self._unfinished: set[str] = set()
        """Names of sessions that ended, and for which `finish` raised."""
        self._ended = set(map(_digest, ended))
        """Hashes of the names of ended sessions: about 80 bytes each, so that millions fit into memory."""

    def find(self, key: str, name: str | None, *, new: bool = True) -> Session:
        named = self._named(key)  # checks the token, also if the path has a name
        name = name or named
        if not name:
            session = self._make()
            session.conversation = ""  # no request continues it
            return session
        if not _NAME.fullmatch(name):
            raise RequestRefused(
                400, "the name of a session may have letters, digits and . _ - only", "invalid_session"
            )
        if name not in self._open and _digest(name) in self._ended:
            raise RequestRefused(409, f"the session {name!r} has ended; use another name", "session_ended")
        if name not in self._open and not new:
            raise RequestRefused(404, f"there is no open session {name!r}", "session_not_found")
        session = self._open[name][0] if name in self._open else self._make()
        self._open[name] = (session, time.monotonic())
        return session

    @property
    def by_model(self) -> Mapping[str, Session]:
        """None: names of models are free here."""
        return {}

    def _named(self, key: str) -> str:
        """Returns the name of a session in a key, which may be empty. Raises RequestRefused for a wrong token."""
        token = self._token
        if token is None:
            return key.rpartition(":")[2] if ":" in key else ""
        if hmac.compare_digest(key.encode(), token.encode()):
            return ""
        given, _, name = key.rpartition(":")
        if not hmac.compare_digest(given.encode(), token.encode()):
            raise _unauthorized()
        return name

    def ended(self, session: Session) -> None:
        for name, (each, _) in list(self._open.items()):
            if each is session:
                self._close(name, session)

    def close(self, reason: str) -> None:
        """Ends all sessions without a reward."""
        self._end(reason, before=float("inf"))
        if self._unfinished:
            logger.error("sessions that are not recorded: %s", ", ".join(sorted(self._unfinished)))

    async def sweep(self) -> None:
        """Ends sessions without requests for the time limit, until cancelled."""
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._timeout_s))
            self._end(f"no request for {self._timeout_s:g} s", before=time.monotonic() - self._timeout_s)

    def _end(self, reason: str, *, before: float) -> None:
        for name, (session, last) in list(self._open.items()):
            if session.ended or (last < before and (before == float("inf") or not session.busy)):
                session.end(reason)
                self._close(name, session)

    def _close(self, name: str, session: Session) -> None:
        try:
            self._finish(name, session)
        except DojangError as error:  # tried again by `sweep`
            if name not in self._unfinished:
                logger.error("the session %s is not recorded yet: %s", name, error)
            self._unfinished.add(name)
            return
        self._unfinished.discard(name)
        del self._open[name]
        self._ended.add(_digest(name))


def _digest(name: str) -> int:
    """Returns a hash of 64 bits: two of ten million names have the same one with a probability of 3 in a million."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
