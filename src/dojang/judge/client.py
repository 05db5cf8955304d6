"""RemoteJudge: sends submissions to judge services over HTTP and retries until one of them judges.

Every submission ends with a judgement in bounded time. If no service could judge it, the outcome is JUDGE_ERROR and
the detail says why. `circuit_breaker.py` chooses the service. Proxies from the environment are ignored: judge
services are on the same network.
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
from dojang.judge.circuit_breaker import CircuitBreaker, pick
from dojang.judge.json_schema import JudgeRequest, SchemaError, dump, parse
from dojang.programs import Isolation, Judgement, Submission, TestSuite
from dojang.types import Outcome

__all__ = ["RemoteJudge", "RetryPolicy"]

K = TypeVar("K")
V = TypeVar("V")

MAX_CACHED = 100_000
KEEPALIVE_EXPIRY_S = 30.0
"""Idle connections are closed before the service closes them."""
MAX_PAUSE_S = 60.0
"""Upper bound of a pause, whatever Retry-After asks for."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeouts and retries."""

    total_s: float = 900.0
    """Timeout of a judgement, all retries included."""
    answer_s: float = 300.0
    """Timeout of one reply."""
    connect_s: float = 5.0
    retries: int = 6
    """Rounds over all services after a failed one. Status 429 (busy) does not count as a failure."""
    first_delay_s: float = 0.5
    """Delay before the first retry; doubles each time."""
    max_delay_s: float = 15.0


class PermanentError(Exception):
    """An error that no retry can fix."""


class RetryableError(Exception):
    """The service failed; it or another one may succeed later."""

    def __init__(self, problem: str, after_s: float = 0.0, busy: bool = False) -> None:
        super().__init__(problem)
        self.after_s = after_s
        self.busy = busy


@dataclass
class RetryRound:
    """One round over all services."""

    tried: list[CircuitBreaker] = field(default_factory=list)
    after_s: float = 0.0
    busy: bool = False

    def add(self, problem: RetryableError) -> None:
        self.after_s = max(self.after_s, problem.after_s)
        self.busy = self.busy or problem.busy


class ConnectionPool:
    """Connections to one service, one httpx client each: the time httpx's pool takes grows with the square of the
    number of its connections."""

    def __init__(self, most: int, make: Callable[[], httpx.AsyncClient]) -> None:
        self._permits = asyncio.Semaphore(most)
        self._make = make
        self._free: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        async with self._permits:
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
    """Connections of one event loop. They close when its last submission ends, so that none outlives the loop."""

    loop: asyncio.AbstractEventLoop
    users: int = 0
    pools: dict[str, "ConnectionPool"] = field(default_factory=dict)
    uploads: dict[tuple[str, str], asyncio.Lock] = field(default_factory=dict)
    pending: set[asyncio.Timeout] = field(default_factory=set)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """Time out everything that is pending."""
        for timeout in self.pending:
            if not timeout.expired():
                timeout.reschedule(self.loop.time())


class RemoteJudge:
    """Judge that sends submissions to services; usable from several event loops."""

    def __init__(
        self,
        urls: Sequence[str],
        token: str | None = None,
        *,
        policy: RetryPolicy | None = None,
        connections: int = 64,
        failures: int = 3,
        cool_down_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`connections` is per service. After `failures` in a row a service is skipped for `cool_down_s`."""
        self._circuits = [CircuitBreaker(url, failures, cool_down_s) for url in dict.fromkeys(map(_check_url, urls))]
        if not self._circuits:
            raise ConfigError("a remote judge needs at least one URL; give the one `dojang judge serve` prints")
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise ConfigError("the judge's token must be printable ASCII without spaces, and not empty")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._policy = policy or RetryPolicy()
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
        last_errors: dict[str, str] = {}  # last error of each service
        try:
            if self._closed:
                raise PermanentError("the remote judge was closed")
            async with self._session() as session, asyncio.timeout(self._policy.total_s) as timeout:
                session.pending.add(timeout)
                try:
                    judgement = await self._judge_with_retries(session, submission, last_errors)
                finally:
                    session.pending.discard(timeout)
        except TimeoutError:
            late = "the remote judge was closed" if self._closed else f"no judgement in {self._policy.total_s:g} s"
            judgement = _judge_error(submission, _with_errors(late, last_errors))
        except PermanentError as error:
            judgement = _judge_error(submission, str(error))
        except Exception as error:  # every submission must end with a judgement
            judgement = _judge_error(submission, _with_errors(f"{type(error).__name__}: {error}", last_errors))
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

    async def _judge_with_retries(
        self, session: Session, submission: Submission, last_errors: dict[str, str]
    ) -> Judgement:
        """Try one service after the other, and all of them again after a pause."""
        failures = 0
        round_ = RetryRound()
        while True:
            circuit = pick(self._circuits, round_.tried, self._clock())
            if circuit is not None:
                round_.tried.append(circuit)
                try:
                    return await self._ask(session, circuit, submission)
                except RetryableError as problem:
                    last_errors[circuit.url] = str(problem)
                    round_.add(problem)
                continue
            failures += not round_.busy
            if failures > self._policy.retries:
                raise PermanentError(_with_errors("no judge service could judge it", last_errors))
            await self._sleep(self._pause(round_, failures))
            round_ = RetryRound()

    def _pause(self, round_: RetryRound, failures: int) -> float:
        """Seconds until the next round: at least what a service asked for, with jitter so that clients do not return
        at once."""
        if round_.busy:
            return min(max(round_.after_s, self._policy.first_delay_s), MAX_PAUSE_S) * (1 + self._uniform())
        delay = min(self._policy.max_delay_s, self._policy.first_delay_s * 2.0 ** (failures - 1))
        asked = max(round_.after_s, min(circuit.wait(self._clock()) for circuit in self._circuits))
        return max(delay * (1 + self._uniform()) / 2, min(asked, MAX_PAUSE_S))

    async def _ask(self, session: Session, circuit: CircuitBreaker, submission: Submission) -> Judgement:
        with circuit.attempt():
            try:
                judgement = await self._judge_on(session, circuit.url, submission)
            except RetryableError as problem:
                if problem.busy:
                    circuit.succeeded()
                else:
                    circuit.failed(self._clock())
                raise
            except PermanentError:
                circuit.succeeded()  # the service works; the request is the problem
                raise
            circuit.succeeded()
            return judgement

    async def _judge_on(self, session: Session, url: str, submission: Submission) -> Judgement:
        """Send the digest only. Upload the test suite if the service does not know it; inline it if that fails."""
        digest = self._digest(submission.test_suite)
        named = JudgeRequest(submission.language, submission.source, submission.stop, test_suite_digest=digest)
        stored = self._stored.get((url, digest), 0)
        reply = await self._send(session, url, "POST", "/v1/judge", dump(named), "unknown_test_suite")
        if reply is None and await self._upload(session, url, submission.test_suite, digest, stored):
            reply = await self._send(session, url, "POST", "/v1/judge", dump(named), "unknown_test_suite")
        if reply is None:
            whole = replace(named, test_suite=submission.test_suite, test_suite_digest=None)
            reply = await self._send(session, url, "POST", "/v1/judge", dump(whole))
        try:
            return parse(Judgement, reply or b"")
        except SchemaError as error:
            raise RetryableError(
                f"the reply is not a judgement ({error}); is it a judge service of this version?"
            ) from None

    async def _upload(self, session: Session, url: str, suite: TestSuite, digest: str, stored: int) -> bool:
        """Upload the suite once for all submissions that wait for it. `stored` counts the uploads before they asked."""
        place = (url, digest)
        async with session.uploads.setdefault(place, asyncio.Lock()):
            if self._stored.get(place, 0) != stored:
                return True
            reply = await self._send(session, url, "PUT", f"/v1/test-suites/{digest}", dump(suite), "wrong_digest")
            if reply is not None:
                _cache_put(self._stored, place, stored + 1)
            return reply is not None

    async def _send(
        self, session: Session, url: str, method: str, path: str, body: bytes, expected: str = ""
    ) -> bytes | None:
        """Return the reply's body; None if it is the `expected` error."""
        try:
            async with self._connection_pool(session, url).one() as client:
                response = await client.request(method, path, content=body)
        except httpx.HTTPError as error:
            raise RetryableError(_describe_error(error)) from None
        if response.is_success:
            return response.content
        code, detail = _error(response)
        if expected and code == expected:
            return None
        words = f"HTTP {response.status_code}: {detail}"
        if response.status_code == 429:
            raise RetryableError(words, _retry_after(response), busy=True)
        if response.status_code >= 500:
            raise RetryableError(words, _retry_after(response) if response.status_code == 503 else 0.0)
        raise PermanentError(f"{url} refused the submission ({words}){_advice(response.status_code)}")

    def _digest(self, suite: TestSuite) -> str:
        """Digest of the suite after a JSON round trip: JSON loses some differences (2 and 2.0, lone surrogates)."""
        if suite.digest not in self._digests:
            _cache_put(self._digests, suite.digest, parse(TestSuite, dump(suite)).digest)
        return self._digests[suite.digest]

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
                for pools in session.pools.values():
                    await pools.close()
                session.idle.set()

    def _connection_pool(self, session: Session, url: str) -> ConnectionPool:
        if url not in session.pools:
            session.pools[url] = ConnectionPool(self._connections, lambda: self._client(url))
        return session.pools[url]

    def _client(self, url: str) -> httpx.AsyncClient:
        if self._tls is None:  # created once: reading the certificates takes a while
            secure = any(circuit.url.startswith("https:") for circuit in self._circuits)
            self._tls = httpx.create_ssl_context(verify=secure)
        transport = httpx.AsyncHTTPTransport(
            verify=self._tls,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEPALIVE_EXPIRY_S),
            socket_options=KEEPALIVE,
        )
        timeout = httpx.Timeout(self._policy.answer_s, connect=self._policy.connect_s)
        return httpx.AsyncClient(base_url=url, headers=self._headers, timeout=timeout, transport=transport)


def _check_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"judge URL {url!r} must look like http://host:port")
    return url.rstrip("/")


def _judge_error(submission: Submission, detail: str) -> Judgement:
    return Judgement(Outcome.JUDGE_ERROR, (), len(submission.test_suite.tests), Isolation.NONE, detail)


def _with_errors(what: str, last_errors: dict[str, str]) -> str:
    trouble = "; ".join(f"{url}: {problem}" for url, problem in last_errors.items())
    advice = "check that the services run (GET /health) and are reachable from here"
    return f"{what} ({trouble}); {advice}" if last_errors else what


def _error(response: httpx.Response) -> tuple[str, str]:
    try:
        body = response.json()
        return str(body["error"]), str(body["detail"])
    except (ValueError, KeyError, TypeError):  # not from a judge service, but from a proxy for example
        return "", response.text[:200] or response.reason_phrase


def _advice(status: int) -> str:
    return {
        401: "; set the token the service was started with",
        404: "; check the URL",
        413: "; let the service accept larger requests, or use fewer or smaller tests",
    }.get(status, "")


def _describe_error(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "1")))
    except ValueError:  # a date instead of seconds
        return 1.0


def _cache_put(memory: dict[K, V], key: K, value: V) -> None:
    if len(memory) >= MAX_CACHED:
        memory.clear()  # costs a few unnecessary uploads
    memory[key] = value
