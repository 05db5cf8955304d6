"""The judge as an HTTP service, for trainers without spare cores or without permission to run untrusted programs.

    GET  /health                  no token needed; 503 while draining
    GET  /metrics                 no token needed; Prometheus text
    PUT  /v1/test-suites/DIGEST   store a test suite; later requests name it by its digest
    POST /v1/judge                judge a submission, return a judgement
    POST /run_code                run a program once (SandboxFusion's protocol)

Every error is {"error": code, "detail": text}. Tokens and programs are never logged. Listening, signals and draining
are in `server.py`. TLS is left to a reverse proxy.
"""

import logging
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dojang.core.errors import ConfigError
from dojang.core.http_service import (
    ERROR_HANDLERS,
    Refusal,
    cancel_on_disconnect,
    check_token,
    discard_body,
    read_body,
    refuse,
)
from dojang.judge.admission import AdmissionControl, QueueFull, ServiceMetrics
from dojang.judge.byte_cache import ByteCache
from dojang.judge.execution import Execution, Runner
from dojang.judge.json_schema import JudgeRequest, SchemaError, dump, parse
from dojang.judge.languages import check_language
from dojang.judge.sandbox_fusion import RunCodeRequest, run_code_reply, sandbox_error
from dojang.programs import Isolation, Judgement, Submission, TestSuite
from dojang.protocols import Judge
from dojang.types import Outcome

__all__ = ["ServiceOptions", "make_app"]

T = TypeVar("T")
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

DISCARD_S = 5.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options of the service, with their defaults."""

    token: str | None = None
    """Token that clients must send as `Authorization: Bearer ...`; None disables the check."""
    queue: int = 256
    """Maximum number of admitted requests; the rest get status 429 and retry later."""
    slots: int | None = None
    """Submissions sent to the judge at a time. Default: four per worker, or `queue` if the number of workers is
    unknown."""
    workers: int | None = None
    """Number of workers shown by /health."""
    isolation: Isolation | None = None
    """Isolation level shown by /health."""
    languages: tuple[str, ...] = ("cpp", "python")
    body_mb: float = 256.0
    """Maximum size of a request in MiB."""
    test_suites_mb: float = 2048.0
    """Size of the test suite cache in MiB of JSON; least recently used test suites are evicted."""
    upload_s: float = 60.0
    """Timeout for receiving a request."""
    retry_after_s: int = 1
    """Value of the Retry-After header."""

    def __post_init__(self) -> None:
        if self.token is not None and not re.fullmatch(r"[!-~]+", self.token):
            raise ConfigError("the judge's token must be printable ASCII without spaces, and not empty; choose another")
        if self.queue < 1 or (self.slots is not None and self.slots < 1):
            raise ConfigError(f"queue={self.queue} and slots={self.slots} must be at least 1")

    @property
    def slot_count(self) -> int:
        return self.slots or min(self.queue, 4 * self.workers if self.workers else self.queue)


class Service:
    """Route handlers."""

    def __init__(self, judge: Judge, options: ServiceOptions) -> None:
        self.admission = AdmissionControl(options.queue, options.slot_count)
        self._judge = judge
        self._options = options
        self._suites = ByteCache[str, TestSuite](options.test_suites_mb * 2**20)
        self._metrics = ServiceMetrics(self.admission, options.languages)

    async def health(self, request: Request) -> Response:
        state = {
            "status": "draining" if self.admission.draining else "ok",
            "isolation": self._options.isolation,
            "workers": self._options.workers,
            "waiting": self.admission.waiting,
            "running": self.admission.running,
        }
        return JSONResponse(state, 503 if self.admission.draining else 200)

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def put_test_suite(self, request: Request) -> Response:
        digest = request.path_params["digest"]
        body = await self._body(request)
        suite = _read(TestSuite, body)
        if suite.digest != digest:
            raise Refusal(422, "wrong_digest", f"the test suite's digest is {suite.digest}; store it under that one")
        self._suites.put(digest, suite, len(body))
        return JSONResponse({"digest": digest, "tests": len(suite.tests)})

    async def judge(self, request: Request) -> Response:
        started = time.monotonic()
        asked = _read(JudgeRequest, await self._body(request))
        suite = asked.test_suite if asked.test_suite_digest is None else self._suites.get(asked.test_suite_digest)
        if suite is None:
            raise Refusal(
                404, "unknown_test_suite", "no test suite is stored under this digest; PUT it to /v1/test-suites/DIGEST"
            )
        try:
            check_language(asked.language, suite)
        except ConfigError as error:
            raise Refusal(422, "unfit", str(error)) from None
        submission = Submission(asked.language, asked.source, suite, asked.stop)
        judgement = await cancel_on_disconnect(request, self._judged(submission))
        judgement = replace(judgement, seconds=time.monotonic() - started)
        self._metrics.count_judged(asked.language, judgement.outcome, judgement.isolation, started)
        if judgement.outcome is Outcome.JUDGE_ERROR and self.admission.draining:
            raise self._closing()  # interrupted by the shutdown; another service can judge it
        return Response(dump(judgement), media_type="application/json")

    async def run_code(self, request: Request) -> Response:
        started = time.monotonic()
        asked = _read(RunCodeRequest, await self._body(request))
        problem = asked.unsupported(self._options.languages)
        if not hasattr(self._judge, "run"):
            problem = "this judge only judges against tests; use /v1/judge"
        if problem:
            self._metrics.count_rejected("unsupported")
            return Response(sandbox_error(problem), media_type="application/json")
        done = await cancel_on_disconnect(request, self._ran(asked))
        self._metrics.count_judged(asked.language, done.outcome, self._options.isolation or "unknown", started)
        return Response(run_code_reply(asked.language, done), media_type="application/json")

    def guarded(self, endpoint: Endpoint, *, busy: int = 429, closing: int = 503) -> Endpoint:
        """Wrap an endpoint in authorization, draining and admission control."""

        async def guard(request: Request) -> Response:
            try:
                check_token(request, self._options.token, "judge")
                if self.admission.draining:
                    raise self._closing(closing)
                with self.admission.admit():
                    return await endpoint(request)
            except QueueFull:
                refusal = Refusal(busy, "busy", f"{self.admission.queue} requests are being handled", self._later())
            except Refusal as error:
                refusal = error
            except ClientDisconnect:
                self._metrics.count_rejected("disconnected")
                return Response(status_code=499)  # the client is gone
            self._metrics.count_rejected(refusal.code)
            if not await discard_body(request, DISCARD_S):
                refusal.headers["Connection"] = "close"
            return refuse(refusal)

        return guard

    async def _judged(self, submission: Submission) -> Judgement:
        async with self.admission.slot():
            try:
                return await self._judge.judge(submission)
            except Exception as error:
                detail = _describe_error(error)
        nothing = self._options.isolation or Isolation.NONE
        return Judgement(Outcome.JUDGE_ERROR, (), len(submission.test_suite.tests), nothing, detail)

    async def _ran(self, asked: RunCodeRequest) -> Execution:
        async with self.admission.slot():
            try:
                runner = cast(Runner, self._judge)
                return await runner.run(asked.language, asked.code, asked.stdin or "", asked.limits)
            except Exception as error:
                return Execution(False, _describe_error(error), None, b"", b"", Outcome.JUDGE_ERROR)

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self._options.body_mb, self._options.upload_s)

    def _closing(self, status: int = 503) -> Refusal:
        return Refusal(status, "draining", "the judge is shutting down; use another one", self._later())

    def _later(self) -> dict[str, str]:
        return {"Retry-After": str(self._options.retry_after_s)}


def make_app(judge: Judge, options: ServiceOptions) -> Starlette:
    """Create the ASGI application. `state.admission` is its admission control. The caller closes the judge."""
    service = Service(judge, options)
    # veRL's client retries after status 504 only, and scores a program as wrong after any other error.
    run_code = service.guarded(service.run_code, busy=504, closing=504)
    app = Starlette(
        routes=[
            Route("/health", service.health),
            Route("/metrics", service.metrics),
            Route("/v1/test-suites/{digest}", service.guarded(service.put_test_suite), methods=["PUT"]),
            Route("/v1/judge", service.guarded(service.judge), methods=["POST"]),
            Route("/run_code", run_code, methods=["POST"]),
        ],
        exception_handlers=ERROR_HANDLERS,
    )
    app.state.admission = service.admission
    return app


def _read(kind: type[T], body: bytes) -> T:
    try:
        return parse(kind, body)
    except SchemaError as error:
        raise Refusal(422, "invalid", str(error), problems=error.problems) from None


def _describe_error(error: Exception) -> str:
    logger.error("the judge raised %s", type(error).__name__)  # without its message, which may quote the program
    return f"the judge raised {type(error).__name__}: {str(error)[:500]}"
