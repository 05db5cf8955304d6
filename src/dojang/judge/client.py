"""A Judge that asks others: judge services over HTTP, several of them if need be.

Whatever happens to the services, a submission ends with a judgement, in bounded time; when nobody could judge it,
that is a JUDGE_ERROR which says why. Which service is asked, and which are left alone for a while, is
`circuit_breaker.py`'s business. Proxies named in the environment are not used: judges are neighbours.
"""

import asyncio
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

import httpx

from dojang.core.errors import ConfigError
from dojang.core.keepalive import KEEPALIVE
from dojang.judge.circuit_breaker import Circuit, pick
from dojang.judge.json_schema import JudgeRequest, SchemaError, dump_exam, dump_request, parse_exam, parse_judgement
from dojang.programs import Exam, Isolation, Judgement, Submission
from dojang.types import Outcome

__all__ = ["Patience", "RemoteJudge"]

K = TypeVar("K")
V = TypeVar("V")

MOST_REMEMBERED = 100_000
KEPT_S = 30.0
"""An idle connection is given up before the service does it."""
LONGEST_PAUSE_S = 60.0
"""However long a service asks to be left alone."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what."""

    total_s: float = 900.0
    """For a judgement, with all that is tried on the way."""
    answer_s: float = 300.0
    """For one answer."""
    connect_s: float = 5.0
    retries: int = 6
    """How often to try all services again after failures. Being told to come back later is no failure."""
    first_delay_s: float = 0.5
    """Before the first retry; doubled each time."""
    longest_delay_s: float = 15.0


class Final(Exception):
    """Trying again would not help."""


class Failed(Exception):
    """The service did not do its work; it, or another one, may do it later."""

    def __init__(self, problem: str, after_s: float = 0.0, busy: bool = False) -> None:
        super().__init__(problem)
        self.after_s = after_s
        self.busy = busy


@dataclass
class Round:
    """One turn around the services."""

    tried: list[Circuit] = field(default_factory=list)
    after_s: float = 0.0
    busy: bool = False

    def add(self, problem: Failed) -> None:
        self.after_s = max(self.after_s, problem.after_s)
        self.busy = self.busy or problem.busy


class Lines:
    """Connections to one service, each a client of its own: httpx's pool takes time that grows with the square of
    the number of its connections."""

    def __init__(self, most: int, make: Callable[[], httpx.AsyncClient]) -> None:
        self._room = asyncio.Semaphore(most)
        self._make = make
        self._free: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self._room:
            client = self._free.pop() if self._free else self._make()
            try:
                yield client
            finally:
                self._free.append(client)

    async def close(self) -> None:
        for client in self._free:
            await client.aclose()


@dataclass
class Session:
    """The connections of one event loop. They last as long as it has something to judge, so that none is left
    behind when a loop ends."""

    loop: asyncio.AbstractEventLoop
    users: int = 0
    lines: dict[str, "Lines"] = field(default_factory=dict)
    uploads: dict[tuple[str, str], asyncio.Lock] = field(default_factory=dict)
    pending: set[asyncio.Timeout] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """All that is pending runs out of time now."""
        for timeout in self.pending:
            if not timeout.expired():
                timeout.reschedule(self.loop.time())


class RemoteJudge:
    """Judges by asking services; usable from any event loop, or several."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str | None = None,
        *,
        patience: Patience | None = None,
        connections: int = 64,
        failures: int = 3,
        cool_down_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`connections` are per service; after `failures` in a row it is left alone for `cool_down_s`."""
        self._circuits = [Circuit(url, failures, cool_down_s) for url in dict.fromkeys(map(_checked, urls))]
        if not self._circuits:
            raise ConfigError("a remote judge needs at least one URL; give the one `dojang judge serve` prints")
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise ConfigError("the judge's token must be printable ASCII without spaces, and not empty")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._patience = patience or Patience()
        self._connections = connections
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self._digests: dict[str, str] = {}
        self._stored: dict[tuple[str, str], int] = {}
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    async def judge(self, submission: Submission) -> Judgement:
        started = self._clock()
        said: dict[str, str] = {}  # the last problem with each service
        try:
            if self._closed:
                raise Final("the remote judge was closed")
            async with self._session() as session, asyncio.timeout(self._patience.total_s) as timeout:
                session.pending.add(timeout)
                try:
                    judgement = await self._persist(session, submission, said)
                finally:
                    session.pending.discard(timeout)
        except TimeoutError:
            late = "the remote judge was closed" if self._closed else f"no judgement in {self._patience.total_s:g} s"
            judgement = _unjudged(submission, _explained(late, said))
        except Final as error:
            judgement = _unjudged(submission, str(error))
        except Exception as error:  # the promise is a judgement, whatever happens
            judgement = _unjudged(submission, _explained(f"{type(error).__name__}: {error}", said))
        return replace(judgement, seconds=self._clock() - started)

    async def close(self) -> None:
        self._closed = True
        here = asyncio.get_running_loop()
        for session in list(self._sessions.values()):
            if session.loop is here:
                session.end()
                await session.idle.wait()
            elif not session.loop.is_closed():
                session.loop.call_soon_threadsafe(session.end)

    async def _persist(self, session: Session, submission: Submission, said: dict[str, str]) -> Judgement:
        """Ask one service after the other, and all of them again after a pause."""
        failures = 0
        turn = Round()
        while True:
            circuit = pick(self._circuits, turn.tried, self._clock())
            if circuit is not None:
                turn.tried.append(circuit)
                try:
                    return await self._ask(session, circuit, submission)
                except Failed as problem:
                    said[circuit.url] = str(problem)
                    turn.add(problem)
                continue
            failures += not turn.busy
            if failures > self._patience.retries:
                raise Final(_explained("no judge service could do it", said))
            await self._sleep(self._pause(turn, failures))
            turn = Round()

    def _pause(self, turn: Round, failures: int) -> float:
        """Never shorter than a service asked for; spread out, so that those turned away do not all return at once."""
        if turn.busy:
            return min(max(turn.after_s, self._patience.first_delay_s), LONGEST_PAUSE_S) * (1 + self._uniform())
        delay = min(self._patience.longest_delay_s, self._patience.first_delay_s * 2.0 ** (failures - 1))
        asked = max(turn.after_s, min(circuit.wait(self._clock()) for circuit in self._circuits))
        return max(delay * (1 + self._uniform()) / 2, min(asked, LONGEST_PAUSE_S))

    async def _ask(self, session: Session, circuit: Circuit, submission: Submission) -> Judgement:
        with circuit.attempt():
            try:
                judgement = await self._converse(session, circuit.url, submission)
            except Failed as problem:
                if problem.busy:
                    circuit.succeeded()
                else:
                    circuit.failed(self._clock())
                raise
            except Final:
                circuit.succeeded()  # it works; what was asked is the problem
                raise
            circuit.succeeded()
            return judgement

    async def _converse(self, session: Session, url: str, submission: Submission) -> Judgement:
        """Name the exam; send it if the service does not know it; put it into the request if that does not help."""
        digest = self._digest(submission.exam)
        named = JudgeRequest(submission.language, submission.source, submission.stop, exam_digest=digest)
        stored = self._stored.get((url, digest), 0)
        reply = await self._send(session, url, "POST", "/v1/judge", dump_request(named), "unknown_exam")
        if reply is None and await self._upload(session, url, submission.exam, digest, stored):
            reply = await self._send(session, url, "POST", "/v1/judge", dump_request(named), "unknown_exam")
        if reply is None:
            whole = replace(named, exam=submission.exam, exam_digest=None)
            reply = await self._send(session, url, "POST", "/v1/judge", dump_request(whole))
        try:
            return parse_judgement(reply or b"")
        except SchemaError as error:
            raise Failed(f"its answer is no judgement ({error}); is it a judge service of this version?") from None

    async def _upload(self, session: Session, url: str, exam: Exam, digest: str, stored: int) -> bool:
        """Store the exam, once for all who wait for it: `stored` is how often that was done before they asked."""
        place = (url, digest)
        async with session.uploads.setdefault(place, asyncio.Lock()):
            if self._stored.get(place, 0) != stored:
                return True
            reply = await self._send(session, url, "PUT", f"/v1/exams/{digest}", dump_exam(exam), "wrong_digest")
            if reply is not None:
                _remember(self._stored, place, stored + 1)
            return reply is not None

    async def _send(
        self, session: Session, url: str, method: str, path: str, body: bytes, expected: str = ""
    ) -> bytes | None:
        """The reply's body; None if it is the error that was expected."""
        try:
            async with self._lines(session, url).one() as client:
                response = await client.request(method, path, content=body)
        except httpx.HTTPError as error:
            raise Failed(_in_words(error)) from None
        if response.is_success:
            return response.content
        code, detail = _error(response)
        if expected and code == expected:
            return None
        words = f"HTTP {response.status_code}: {detail}"
        if response.status_code == 429:
            raise Failed(words, _retry_after(response), busy=True)
        if response.status_code >= 500:
            raise Failed(words, _retry_after(response) if response.status_code == 503 else 0.0)
        raise Final(f"{url} refused the submission ({words}){_advice(response.status_code)}")

    def _digest(self, exam: Exam) -> str:
        """As the service will see it: JSON does not carry every difference (2 and 2.0, lone surrogates)."""
        if exam.digest not in self._digests:
            _remember(self._digests, exam.digest, parse_exam(dump_exam(exam)).digest)
        return self._digests[exam.digest]

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        loop = asyncio.get_running_loop()
        session = self._sessions.setdefault(loop, Session(loop))
        session.users += 1
        try:
            yield session
        finally:
            session.users -= 1
            if not session.users:
                self._sessions.pop(loop, None)
                for lines in session.lines.values():
                    await lines.close()
                session.idle.set()

    def _lines(self, session: Session, url: str) -> Lines:
        if url not in session.lines:
            session.lines[url] = Lines(self._connections, lambda: self._client(url))
        return session.lines[url]

    def _client(self, url: str) -> httpx.AsyncClient:
        if self._tls is None:  # made once: reading the certificates takes a while
            secure = any(circuit.url.startswith("https:") for circuit in self._circuits)
            self._tls = httpx.create_ssl_context(verify=secure)
        transport = httpx.AsyncHTTPTransport(
            verify=self._tls,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=KEPT_S),
            socket_options=KEEPALIVE,
        )
        timeout = httpx.Timeout(self._patience.answer_s, connect=self._patience.connect_s)
        return httpx.AsyncClient(base_url=url, headers=self._headers, timeout=timeout, transport=transport)


def _checked(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"judge URL {url!r} must look like http://host:port")
    return url.rstrip("/")


def _unjudged(submission: Submission, detail: str) -> Judgement:
    return Judgement(Outcome.JUDGE_ERROR, (), len(submission.exam.tests), Isolation.NONE, detail)


def _explained(what: str, said: dict[str, str]) -> str:
    trouble = "; ".join(f"{url}: {problem}" for url, problem in said.items())
    advice = "see that the services run (their /health says) and can be reached from here"
    return f"{what} ({trouble}); {advice}" if said else what


def _error(response: httpx.Response) -> tuple[str, str]:
    try:
        body = response.json()
        return str(body["error"]), str(body["detail"])
    except (ValueError, KeyError, TypeError):  # not from a judge service: a proxy, say
        return "", response.text[:200] or response.reason_phrase


def _advice(status: int) -> str:
    return {
        401: "; set the token the service was started with",
        404: "; check the URL",
        413: "; let the service accept larger requests, or use fewer or smaller tests",
    }.get(status, "")


def _in_words(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "1")))
    except ValueError:  # a date
        return 1.0


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    if len(memory) >= MOST_REMEMBERED:
        memory.clear()  # costs a few uploads that were not needed
    memory[key] = value
