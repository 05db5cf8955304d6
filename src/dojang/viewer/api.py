"""Routes of the viewer's HTTP API. Every reply is JSON; an error is {"error": what was wrong and what to do}."""

import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from dojang.core.errors import ConfigError, DojangError, RunDirError
from dojang.core.http_service import Refusal, read_body
from dojang.viewer import parameters
from dojang.viewer.problems import problem_reply, problems_reply
from dojang.viewer.rollout_page import judge_reply, rollout_reply, tests_reply, text_reply
from dojang.viewer.rollout_pages import facets_reply, rollouts_reply
from dojang.viewer.run_list import RunList
from dojang.viewer.settings import compare, config_reply
from dojang.viewer.viewed_run import ViewedRun

__all__ = ["ERROR_HANDLERS", "make_routes"]

_BODY_MB, _BODY_S = 0.1, 10.0
_NOT_STORED = {"Cache-Control": "no-store"}
Reply = dict[str, Any]
Given = parameters.Given


class _Json(JSONResponse):
    """JSON without NaN, which browsers refuse: null instead."""

    def render(self, content: Any) -> bytes:
        try:
            return _dump(content)
        except ValueError:  # rare, so not looked for in every reply
            return _dump(_without_nan(content))


def _dump(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_routes(runs: RunList) -> list[Route]:
    """Routes below /api."""

    def of_run(name: str, answer: Callable[[ViewedRun, Given], Reply]) -> Route:
        def endpoint(request: Request) -> Response:
            return _reply(answer(_run(runs, request.path_params["run"]), request.query_params))

        return Route(f"/api/runs/{{run}}/{name}", endpoint)

    return [
        Route("/api/runs", lambda request: _reply({"runs": runs.each(ViewedRun.describe)})),
        Route("/api/state", lambda request: _reply({"runs": dict(runs.each(lambda run: (run.id, run.state())))})),
        of_run("metrics", _metrics),
        of_run("rollouts", rollouts_reply),
        of_run("facets", facets_reply),
        of_run("rollout", rollout_reply),
        of_run("problems", problems_reply),
        of_run("problem", problem_reply),
        of_run("timeline", lambda run, given: run.timeline.reply(given)),
        of_run("config", lambda run, given: config_reply(run.files)),
        of_run("explain", lambda run, given: run.explain()),
        of_run("tests", tests_reply),
        Route("/api/runs/{run}/judge", partial(_judge, runs), methods=["POST"]),
        Route("/api/compare", lambda request: _reply(_compare(runs, request.query_params))),
        Route("/api/runs/{run}/text", lambda request: _text(runs, request)),
    ]


def _reply(content: Reply) -> Response:
    return _Json(content, headers=_NOT_STORED)


def _compare(runs: RunList, given: Given) -> Reply:
    first, second = (_run(runs, given.get(side, "")).files for side in ("a", "b"))
    return compare(first, second)


def _run(runs: RunList, name: str) -> ViewedRun:
    try:
        return runs.get(name)
    except KeyError:
        known = ", ".join(run.id for run in runs.all()[:20])
        raise HTTPException(404, f"there is no run {name!r:.80} here; there are {known}") from None


def _metrics(run: ViewedRun, given: Given) -> Reply:
    run.metrics.update()
    if run.metrics.trouble:
        raise RunDirError(run.metrics.trouble)
    return {
        "catalogue": run.metrics.catalogue(),
        "series": run.metrics.series(parameters.names(given, "names")),
        "version": run.metrics.version,
    }


async def _judge(runs: RunList, request: Request) -> Response:
    try:
        given = json.loads(await read_body(request, _BODY_MB, _BODY_S))
    except (ValueError, RecursionError):
        given = None
    except Refusal as refusal:
        raise HTTPException(refusal.status, refusal.detail) from None
    if not isinstance(given, dict):
        raise ConfigError("the body is no JSON object with kind, step, prompt_index, index, role and turn")
    run = _run(runs, request.path_params["run"])
    named = {str(name): str(value) for name, value in given.items() if value is not None}
    return _reply(await run_in_threadpool(judge_reply, run, named))


def _text(runs: RunList, request: Request) -> Response:
    """A whole text as a file to save, which no browser shows as a page."""
    run, given = _run(runs, request.path_params["run"]), request.query_params
    name = f"{given.get('column') or 'response'}.txt"
    headers = {**_NOT_STORED, "Content-Disposition": f'attachment; filename="{name}"'}
    return PlainTextResponse(text_reply(run, given).encode(errors="replace"), headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _Json({"error": error.detail}, error.status_code, {**_NOT_STORED, **(error.headers or {})})
    return _Json({"error": str(error)}, 400, _NOT_STORED)


async def _failed(request: Request, error: Exception) -> Response:
    said = f"the viewer failed ({type(error).__name__}); its terminal has the details"
    return _Json({"error": said}, 500, _NOT_STORED)


ERROR_HANDLERS: dict[Any, Any] = {HTTPException: _refused, DojangError: _refused, Exception: _failed}
"""Handlers of errors in the application."""
