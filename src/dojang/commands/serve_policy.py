"""`dojang serve policy`: a model behind the APIs of OpenAI and Anthropic, until Ctrl-C."""

import asyncio
import itertools
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dojang.config.recipe import resolve
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.http_service import LOOPBACK
from dojang.evaluation.cases import find_subject
from dojang.types import Sampling

if TYPE_CHECKING:
    from dojang.environments.policy_server.records import Recorder
    from dojang.workflows.section import RolloutPolicy

__all__ = ["PolicyOptions", "policy_config", "serve", "serve_until"]

_MAX_TOKENS = 256
_NO_LIMIT = 2**31
"""Requests of a session, which has a time limit instead."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Options of the server."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    record: Path | None = None
    max_tokens: int | None = None
    session_timeout_s: float = 3600.0
    seed: int = 0


def serve(model: str, overrides: Sequence[str], options: PolicyOptions) -> None:
    """Serves a model until Ctrl-C or SIGTERM."""
    if options.host not in LOOPBACK and not options.token:
        raise ConfigError(
            f"--host {options.host} is reachable from other machines; give a --token that clients send as API key, or "
            "use --host 127.0.0.1"
        )
    config = policy_config(model, overrides, options)
    asyncio.run(_serve(model, config, options))


def policy_config(model: str, overrides: Sequence[str], options: PolicyOptions) -> RunConfig:
    """Returns the settings: those of the run, if the model is one, then the options, then KEY=VALUE."""
    subject = find_subject(model, "")
    template = subject.settings.get("model", {}).get("chat_template_kwargs")
    rollout = {"max_tokens": _MAX_TOKENS, **subject.settings.get("rollout", {})}
    tree: dict[str, Any] = {
        "model": {"name": subject.path, **({"chat_template_kwargs": template} if template else {})},
        "data": {"name": "arithmetic"},  # a configuration needs one; it is not read
        "rollout": {**rollout, **({"max_tokens": options.max_tokens} if options.max_tokens else {})},
    }
    return resolve("dojang serve policy", tree, overrides)


async def _serve(model: str, config: RunConfig, options: PolicyOptions) -> None:
    from dojang.runs.training import import_build

    import_build()
    from dojang.environments.policy_server.records import Recorder
    from dojang.evaluation.evaluator import Evaluator

    recorder = None if options.record is None else Recorder(options.record)  # refused before the model is loaded
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    evaluator = Evaluator(config)
    try:
        sampling = Sampling(1.0, config.rollout.max_tokens, options.seed)
        policy = await evaluator.policy(config, sampling)
        name = Path(model).name if Path(model).exists() else model
        await serve_until(stop, policy, name, options, typer.echo, recorder)
    finally:
        await evaluator.close()
        if recorder is not None:
            recorder.close()


async def serve_until(
    stop: asyncio.Event,
    policy: "RolloutPolicy",
    name: str,
    options: PolicyOptions,
    say: Callable[[str], object],
    recorder: "Recorder | None" = None,
) -> None:
    """Serves a policy until the event; then ends all sessions without a reward."""
    from dojang.environments.policy_server.routes import make_app
    from dojang.environments.policy_server.server import serving
    from dojang.environments.policy_server.session import Session, SessionRules
    from dojang.environments.policy_server.sessions import ServedSessions

    numbers = itertools.count()
    sessions = ServedSessions(
        lambda: Session(policy, SessionRules(_NO_LIMIT, "allow"), place=next(numbers)),
        (lambda name, session: None) if recorder is None else recorder.add,
        token=options.token,
        timeout_s=options.session_timeout_s,
        ended=() if recorder is None else recorder.names(),
    )
    async with serving(make_app(sessions, name), options.host, options.port) as url:
        sweeping = asyncio.create_task(sessions.sweep())
        try:
            say(f"serving {name}: {url}/v1   (Ctrl-C ends it)")
            await stop.wait()
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            sessions.close("the server was stopped")
