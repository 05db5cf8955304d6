"""The Starlette application.

    POST /v1/chat/completions, /v1/completions    OpenAI
    GET  /v1/models, /v1/models/ID                OpenAI
    POST /v1/messages, /v1/messages/count_tokens  Anthropic
    POST /v1/sessions/ID/reward                   {"reward": 1.0, "solved": true, "parts": {}}: ends the session
    GET  /v1/sessions/ID/training_trace           OpenEnv's TrainingTrace of the requests so far
    DELETE /v1/sessions/ID                        ends the session without a reward
    GET  /health                                  no key needed

The API key names the session; all routes are also below /sessions/ID. Errors have the form of the API.
"""

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from dojang.core.http_service import Refusal, cancel_on_disconnect, read_body
from dojang.environments.policy_server import anthropic, openai_chat, openai_text
from dojang.environments.policy_server.fields import invalid, read_flag
from dojang.environments.policy_server.records import to_record
from dojang.environments.policy_server.requests import PolicyReply, PolicyRequest, RequestRefused
from dojang.environments.policy_server.reward import read_reward
from dojang.environments.policy_server.session import Session
from dojang.environments.policy_server.sessions import Gate
from dojang.environments.policy_server.sse import stream
from dojang.environments.policy_server.training_trace import to_training_trace

__all__ = ["make_app"]

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]
_BODY_MB, _UPLOAD_S = 64.0, 60.0
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
}


@dataclass(frozen=True, slots=True)
class _Api:
    """An API: how requests are read and replies written."""

    read: Callable[[Mapping[str, Any]], Sequence[PolicyRequest]]
    write: Callable[[Mapping[str, Any], PolicyReply, str], dict[str, Any]]
    events: Callable[[Mapping[str, Any], PolicyReply, str], Iterator[dict[str, Any]]]
    named_events: bool = False


_CHAT = _Api(lambda body: (openai_chat.chat_request(body),), openai_chat.chat_reply, openai_chat.chat_chunks)
_TEXT = _Api(openai_text.text_requests, openai_text.text_reply, openai_text.text_chunks)
_MESSAGES = _Api(
    lambda body: (anthropic.message_request(body),),
    anthropic.message_reply,
    anthropic.message_events,
    named_events=True,
)


def make_app(gate: Gate, model: str) -> Starlette:
    """Builds the application that serves a model."""
    served = _Routes(gate, model)
    routes = [
        Route("/v1/chat/completions", _guarded(served.asking(_CHAT)), methods=["POST"]),
        Route("/v1/completions", _guarded(served.asking(_TEXT)), methods=["POST"]),
        Route("/v1/messages", _guarded(served.asking(_MESSAGES)), methods=["POST"]),
        Route("/v1/messages/count_tokens", _guarded(served.count_tokens), methods=["POST"]),
        Route("/v1/models", _guarded(served.models), methods=["GET"]),
        Route("/v1/models/{model:path}", _guarded(served.models), methods=["GET"]),
        Route("/v1/sessions/{session}/reward", _guarded(served.reward), methods=["POST"]),
        Route("/v1/sessions/{session}/training_trace", _guarded(served.training_trace), methods=["GET"]),
        Route("/v1/sessions/{session}", _guarded(served.end), methods=["DELETE"]),
    ]
    return Starlette(
        routes=[Route("/health", _health), *routes, Mount("/sessions/{session}", routes=routes)],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
    )


class _Routes:
    def __init__(self, gate: Gate, model: str) -> None:
        self._gate, self._model = gate, model

    def asking(self, api: _Api) -> Endpoint:
        """Returns the endpoint that samples a reply."""

        async def ask(request: Request) -> Response:
            session, body = await self._session_and_body(request)
            session.limit = ""  # of an earlier request: what ends the agent later may have another reason
            wanted = api.read(body)
            reply = await cancel_on_disconnect(request, session.ask(wanted))
            if read_flag(body, "stream"):
                return stream(api.events(body, reply, self._model), named=api.named_events)
            return JSONResponse(api.write(body, reply, self._model))

        return ask

    async def count_tokens(self, request: Request) -> Response:
        session, body = await self._session_and_body(request)
        return JSONResponse({"input_tokens": session.count(anthropic.count_request(body))})

    async def models(self, request: Request) -> Response:
        self._session(request)
        card = {"id": self._model, "object": "model", "created": 0, "owned_by": "dojang"}
        wanted = request.path_params.get("model")
        if wanted is None:
            return JSONResponse({"object": "list", "data": [card]})
        if wanted != self._model:
            raise RequestRefused(404, f"there is no model {wanted!r:.80}, only {self._model!r}", "model_not_found")
        return JSONResponse(card)

    async def reward(self, request: Request) -> Response:
        session = self._session(request, new=False)
        step = read_reward(await _read(request))
        if session.ended:
            raise RequestRefused(409, f"the session has ended: {session.ended}", "session_ended")
        session.trained_streams(step)  # refuses the training trace of another session
        session.end("its reward was given", step)
        self._gate.ended(session)
        return JSONResponse({"reward": step.reward})

    async def training_trace(self, request: Request) -> Response:
        session = self._session(request, new=False)
        return JSONResponse(to_training_trace(to_record("", session)))

    async def end(self, request: Request) -> Response:
        session = self._session(request, new=False)
        session.end("a client ended it without a reward")
        self._gate.ended(session)
        return JSONResponse({"ended": True})

    async def _session_and_body(self, request: Request) -> tuple[Session, Mapping[str, Any]]:
        """Returns the session and the body. Only the body of a request with a known key is read, unless a session may
        be named by the model."""
        try:
            return self._session(request), await _read(request)
        except RequestRefused as error:
            if error.status != 401 or not self._gate.by_model:
                raise
            body = await _read(request)
            if (session := self._gate.by_model.get(str(body.get("model")))) is None:
                raise
            return session, body

    def _session(self, request: Request, *, new: bool = True) -> Session:
        given = request.headers.get("authorization", "")
        key = given[7:] if given[:7].lower() == "bearer " else request.headers.get("x-api-key", "")
        return self._gate.find(key.strip(), request.path_params.get("session"), new=new)


async def _read(request: Request) -> Mapping[str, Any]:
    """Returns the body. Raises RequestRefused unless it is a JSON object."""
    try:
        raw = await read_body(request, _BODY_MB, _UPLOAD_S)
        body = json.loads(raw.decode("utf-8-sig"))  # json.loads would take bytes of half surrogate pairs
        if b"\\ud" in raw.lower():  # escapes of surrogates, which no tokenizer accepts unless they come in pairs
            json.dumps(body, ensure_ascii=False).encode()
    except Refusal as error:
        raise RequestRefused(error.status, error.detail, error.code) from None
    except (ValueError, RecursionError) as error:
        raise invalid(f"the request is no valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise invalid("the request must be a JSON object", code="invalid_json")
    return body


def _guarded(endpoint: Endpoint) -> Endpoint:
    """Turns refused requests into errors in the form of their API."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except RequestRefused as error:
            return _error(request, error)
        except ClientDisconnect:
            return Response(status_code=499)

    return answer


def _error(request: Request, error: RequestRefused) -> Response:
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    if request.url.path.endswith(("/v1/messages", "/v1/messages/count_tokens")):
        content: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": error.message}}
    else:
        content = {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}
    return JSONResponse(content, error.status)


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return _error(request, RequestRefused(error.status_code, error.detail, code))


async def _internal_error(request: Request, error: Exception) -> Response:
    return _error(request, RequestRefused(500, f"the server failed ({type(error).__name__})", "internal"))
