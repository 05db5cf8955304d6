"""Routes for rollout workers, in the trainer's process (messages.py lists them).

Every request needs the run's token. A worker that the service does not know has to join first: after a restart of the
trainer, version numbers may stand for other weights, so workers of before start anew.
"""

import asyncio
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dojang.core.errors import ClusterError
from dojang.core.http_service import (
    ERROR_HANDLERS,
    Refusal,
    cancel_on_disconnect,
    check_token,
    discard_body,
    read_body,
    refuse,
)
from dojang.loop.group_codec import decode
from dojang.loop.rollout_queue import RolloutQueue
from dojang.rollout_service.messages import (
    DeliverReply,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaseMessage,
    LeaseReply,
    LeaseRequest,
    LeaveRequest,
    MessageError,
    RunDescription,
    parse,
)
from dojang.rollout_service.pack_cache import PackCache
from dojang.types import Problem
from dojang.weight_sync.versions import WeightVersions

__all__ = ["RolloutService", "ServedRun"]

logger = logging.getLogger(__name__)
M = TypeVar("M", JoinRequest, LeaseRequest, HeartbeatRequest, LeaveRequest)
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

_DISCARD_S = 5.0
_MOST_FAILURES = 5
"""Failures of workers, without a group taken between them, after which the run fails."""
_MOST_SILENT = 1000
"""Silent workers that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """The run that workers join, and limits of their requests."""

    description: RunDescription
    data: str
    """Digest of the training problems."""
    problem: Callable[[int], Problem]
    """Returns the problem of a prompt index."""
    weights: Mapping[str, WeightVersions]
    """Weights of each policy."""
    token: str
    timeout_s: float
    """Seconds without a heartbeat after which a worker's prompts go to others."""
    message_mb: float = 4.0
    """Largest JSON message, in MiB."""
    group_mb: float = 512.0
    """Largest group, in MiB."""
    upload_s: float = 600.0
    """Seconds for receiving a request."""


@dataclass(slots=True)
class _Member:
    name: str
    heard: float
    """Time of its last request."""


class RolloutService:
    """Route handlers, over the rollout queue and the weights of the policies. Workers may build their parts before the
    run begins, and join then."""

    def __init__(self, run: ServedRun) -> None:
        self._run = run
        self._begun: asyncio.Future[RolloutQueue] = asyncio.get_running_loop().create_future()
        self._failure: ClusterError | None = None
        self._packs = PackCache(run.weights)
        self._digest = run.description.digest
        self._session = secrets.token_hex(4)
        self._joining = 0
        """Workers that wait for the run to begin."""
        self._joined = 0
        self._members: dict[str, _Member] = {}
        """Workers that have joined, not left, and given a sign of life, by identifier."""
        self._silent: dict[str, _Member] = {}
        """Workers that have given none for too long. One that was only cut off may still deliver its groups."""
        self._left = asyncio.Event()
        self._failed: set[str] = set()
        """Names of workers that failed since a group was taken, from these or other workers."""
        self._taken = 0
        """Groups taken before the first of these failures."""
        self._productive: set[str] = set()
        """Names of workers that have delivered a group."""
        self.sent_bytes = 0
        """Bytes of weights sent to workers."""

    @property
    def workers(self) -> list[str]:
        """Names of the workers that have joined, not left, and given a sign of life."""
        self._drop_silent()
        return [each.name for each in self._members.values()]

    @property
    def ended(self) -> bool:
        """Whether no further prompt will be leased."""
        return self._begun.done() and self._queue.ended

    @property
    def _queue(self) -> RolloutQueue:
        if not self._begun.done():
            raise Refusal(503, "starting", "the run has not begun; join later")
        return self._begun.result()

    def begin(self, queue: RolloutQueue) -> None:
        """Lets workers join."""
        self._begun.set_result(queue)
        if self._failure is not None:
            queue.fail(self._failure)

    async def all_joined(self) -> None:
        """Waits until the workers that waited for the run to begin have joined it."""
        while self._joining:
            await asyncio.sleep(0)

    def app(self) -> Starlette:
        """Creates the ASGI application."""
        posts: dict[str, Endpoint] = {
            "/join": self._join,
            "/lease": self._lease,
            "/heartbeat": self._heartbeat,
            "/deliver": self._deliver,
            "/leave": self._leave,
        }
        return Starlette(
            routes=[
                Route("/run", self._guarded(self._describe)),
                Route("/weights/{policy}/{version:int}", self._guarded(self._weights)),
                *(Route(path, self._guarded(endpoint), methods=["POST"]) for path, endpoint in posts.items()),
            ],
            exception_handlers=ERROR_HANDLERS,
        )

    def failed(self, name: str, reason: str, *, killed: bool = False) -> None:
        """Records that a worker failed. Ends the run after several failures without a group between them. A worker that
        was `killed` after it had delivered groups does not count: all of them may be killed at once."""
        if name in self._failed:
            return
        logger.warning("rollout worker %s failed: %s", name, reason)
        if killed and name in self._productive:
            return
        if self._begun.done() and (taken := self._queue.taken) != self._taken:
            self._failed.clear()
            self._taken = taken
        self._failed.add(name)
        if len(self._failed) >= _MOST_FAILURES:
            text = (
                f"{len(self._failed)} rollout workers failed without a group between them; the last, {name}: {reason}"
            )
            self._failure = ClusterError(text)
            if self._begun.done():
                self._queue.fail(self._failure)

    def lost(self, name: str) -> None:
        """Returns the prompts of a worker whose process has ended."""
        for worker in [worker for worker, each in (self._members | self._silent).items() if each.name == name]:
            self._remove(worker)

    async def all_left(self, limit_s: float) -> None:
        """Waits until all workers have left, at most this long."""
        try:
            async with asyncio.timeout(limit_s):
                while self.workers:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            logger.warning("rollout workers did not leave: %s", ", ".join(self.workers))

    async def _describe(self, request: Request) -> Response:
        return _reply(self._run.description)

    async def _join(self, request: Request) -> Response:
        asked = await self._message(JoinRequest, request)
        here = self._run.description.dojang
        if asked.dojang != here:
            raise Refusal(409, "wrong_version", f"the worker has dojang {asked.dojang}, the run {here}; install {here}")
        if asked.run != self._digest:
            raise Refusal(409, "wrong_run", "the worker was built for other settings or models; start it again")
        if asked.data != self._run.data:
            raise Refusal(
                409,
                "wrong_data",
                "the worker has other training problems than the run: the same prompt index would be another problem; "
                "give it the same data files",
            )
        self._joining += 1
        try:
            await asyncio.wait({self._begun}, timeout=self._run.timeout_s / 4)
        finally:
            self._joining -= 1
        version = self._queue.ledger.version
        self._joined += 1
        worker = f"{asked.name} {self._session}-{self._joined}"
        self._queue.enter(worker)
        self._members[worker] = _Member(asked.name, asyncio.get_running_loop().time())
        logger.info("rollout worker %s joined", asked.name)
        return _reply(JoinReply(worker=worker, version=version))

    async def _lease(self, request: Request) -> Response:
        asked = await self._message(LeaseRequest, request)
        self._check_known(asked.worker)
        lease = await cancel_on_disconnect(request, self._queue.lease(asked.worker, self._run.timeout_s / 4))
        found = None
        if lease is not None:
            found = LeaseMessage(prompt_index=lease.prompt_index, attempt=lease.attempt, version=lease.version)
        return _reply(LeaseReply(lease=found, ended=self._queue.ended))

    async def _heartbeat(self, request: Request) -> Response:
        asked = await self._message(HeartbeatRequest, request)
        self._check_known(asked.worker)
        self._queue.heartbeat(asked.worker, asked.prompts)
        waiting = self._queue.wait_version(asked.version, self._run.timeout_s / 4)
        version = await cancel_on_disconnect(request, waiting)
        return _reply(HeartbeatReply(version=version, ended=self._queue.ended))

    async def _deliver(self, request: Request) -> Response:
        worker, digest = _text(request, "worker"), _text(request, "digest")
        prompt_index, attempt = _number(request, "prompt_index"), _number(request, "attempt")
        member = self._check_known(worker)
        body = await read_body(request, self._run.group_mb, self._run.upload_s)
        if hashlib.blake2b(body, digest_size=16).hexdigest() != digest:
            raise Refusal(400, "damaged", "the group differs from its digest: it was damaged on the way; send it again")
        try:
            group = await asyncio.to_thread(decode, body, self._run.problem)
            answer = await self._queue.deliver(worker, prompt_index, attempt, group)
        except ValueError as error:
            raise Refusal(422, "invalid", f"the group is invalid: {error}") from None
        if answer == "taken":
            self._productive.add(member.name)
        return _reply(DeliverReply(answer=answer))

    async def _weights(self, request: Request) -> Response:
        policy, version = request.path_params["policy"], request.path_params["version"]
        base = _number(request, "base") if "base" in request.query_params else None
        if policy not in self._run.weights:
            known = ", ".join(self._run.weights)
            raise Refusal(404, "unknown_policy", f"the run has no policy {policy!r}; it has {known}")
        try:
            pack = await self._packs.get(policy, version, base, merge=_number(request, "merge") > 0)
        except LookupError as error:
            raise Refusal(404, "unknown_weights", str(error)) from None
        start = _offset(request, pack.tag, pack.size)
        headers = {"ETag": f'"{pack.tag}"', "Accept-Ranges": "bytes", "Content-Length": str(pack.size - start)}
        if start:
            headers["Content-Range"] = f"bytes {start}-{pack.size - 1}/{pack.size}"

        async def stream() -> Any:
            for chunk in pack.chunks(start):
                yield chunk
                self.sent_bytes += len(chunk)

        media = "application/octet-stream"
        return StreamingResponse(stream(), 206 if start else 200, headers, media_type=media)

    async def _leave(self, request: Request) -> Response:
        asked = await self._message(LeaveRequest, request)
        if member := self._remove(asked.worker):
            if asked.error:
                self.failed(member.name, asked.error)
            else:
                logger.info("rollout worker %s left", member.name)
        return Response(status_code=204)

    def _remove(self, worker: str) -> _Member | None:
        if (member := self._members.pop(worker, None) or self._silent.pop(worker, None)) is not None:
            self._queue.leave(worker)
            self._left.set()
        return member

    def _drop_silent(self) -> None:
        """Removes workers without a sign of life, such as killed ones of other machines. Their leases expire."""
        since = asyncio.get_running_loop().time() - self._run.timeout_s
        for worker in [worker for worker, each in self._members.items() if each.heard < since]:
            self._silent[worker] = member = self._members.pop(worker)
            self._left.set()
            logger.warning(
                "rollout worker %s has given no sign of life for %g s: its prompts go to others",
                *(member.name, self._run.timeout_s),
            )
        while len(self._silent) > _MOST_SILENT:
            del self._silent[next(iter(self._silent))]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """Wraps an endpoint in authorization and error replies."""

        async def guard(request: Request) -> Response:
            try:
                check_token(request, self._run.token, "run")
                return await endpoint(request)
            except Refusal as error:
                refusal = error
            except ClientDisconnect:
                return Response(status_code=499)  # the client is gone
            except Exception as error:  # such as a full disk, which ends the run
                logger.error("%s failed: %r", request.url.path, error)
                refusal = Refusal(500, "internal", f"the service failed ({type(error).__name__})")
            if not await discard_body(request, _DISCARD_S):
                refusal.headers["Connection"] = "close"
            return refuse(refusal)

        return guard

    async def _message(self, kind: type[M], request: Request) -> M:
        body = await read_body(request, self._run.message_mb, self._run.upload_s)
        try:
            return parse(kind, body)
        except MessageError as error:
            raise Refusal(422, "invalid", str(error)) from None

    def _check_known(self, worker: str) -> _Member:
        if (member := self._members.get(worker) or self._silent.pop(worker, None)) is None:
            raise Refusal(409, "unknown_worker", "this worker has not joined, or the run was restarted; join again")
        member.heard = asyncio.get_running_loop().time()
        self._members[worker] = member
        self._drop_silent()
        return member


def _reply(message: Any) -> Response:
    return Response(message.model_dump_json(), media_type="application/json")


def _text(request: Request, name: str) -> str:
    if not (found := request.query_params.get(name)):
        raise Refusal(422, "invalid", f"the parameter {name} is missing")
    return str(found)


def _number(request: Request, name: str) -> int:
    if not re.fullmatch(r"\d{1,18}", found := _text(request, name), re.ASCII):
        raise Refusal(422, "invalid", f"the parameter {name} is no whole number: {found[:40]!r}")
    return int(found)


def _offset(request: Request, tag: str, size: int) -> int:
    """First byte to send: that of a Range request, if the client has the beginning of the same pack; else 0."""
    wanted = re.fullmatch(r"bytes=(\d{1,18})-", request.headers.get("range", ""), re.ASCII)
    if wanted is None or request.headers.get("if-range") != f'"{tag}"' or int(wanted[1]) >= size:
        return 0
    return int(wanted[1])
