"""A session: one episode of an agent. Samples replies and records their tokens.

Each reply extends the token stream of the conversation that its request continues (history.py). Requests may overlap:
the order in which they arrive decides their random numbers and the order of the streams.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from dojang.core.errors import ConfigError, ModelError
from dojang.environments.base import Step
from dojang.environments.policy_server.fields import invalid
from dojang.environments.policy_server.history import History, Place, Prompt, shown_with
from dojang.environments.policy_server.requests import Choice, PolicyReply, PolicyRequest, RequestRefused
from dojang.environments.policy_server.show import find_stop, show
from dojang.environments.policy_server.training_trace import check_trace, with_loss_of
from dojang.environments.token_stream import TokenStream
from dojang.protocols import Renderer
from dojang.types import Completion, Sampling
from dojang.workflows.batched_turns import TurnBarrier
from dojang.workflows.section import RolloutPolicy

__all__ = ["ClientSampling", "Session", "SessionRules"]

ClientSampling = Literal["refuse", "ignore", "allow"]
"""Treatment of requests with other sampling parameters than the session's."""
REQUEST_STREAM = 2**35
"""Distance between the seeds of two requests, so that each request of a session has its own random numbers."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """Limits of a session."""

    max_turns: int
    """Largest number of requests."""
    client_sampling: ClientSampling = "refuse"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that can be sampled."""

    request: PolicyRequest
    renderer: Renderer
    prompt: Prompt
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class _Sampled:
    """Replies to a prompt that are not recorded yet."""

    asked: _Asked
    number: int
    place: Place | None
    """The conversation that the prompt continues."""
    completions: Sequence[Completion] = ()

    def release(self) -> None:
        """Lets another request continue the conversation."""
        if self.place is not None:
            self.place.continued = False


class Session:
    """State of one session."""

    def __init__(
        self, policy: RolloutPolicy, rules: SessionRules, *, place: int = 0, barrier: TurnBarrier | None = None
    ) -> None:
        """`place` is the number of the sample within the run: with the number of a request it selects the random
        stream. Requests of all sessions with the same barrier are sampled together."""
        self.result: Step | None = None
        """Reward that was posted."""
        self.ended = ""
        """Reason why the session takes no more requests."""
        self.limit = ""
        """Limit that the last request exceeded: of the context, or of the number of requests; empty if it did not."""
        self.failure: BaseException | None = None
        """Failure of the engine."""
        self.ignored: dict[str, float] = {}
        """Sampling parameters of clients that were not used."""
        self.conversation = secrets.token_hex(8)
        """Id of the session, for the engine's prefix cache; empty if it has one request."""
        self._policy, self._rules, self._place, self._barrier = policy, rules, place, barrier
        self._history = History()
        self._streams: list[tuple[tuple[int, int], TokenStream]] = []
        self._requests = 0
        self._running: set[asyncio.Future[Any]] = set()

    @property
    def streams(self) -> list[TokenStream]:
        """Token streams, in the order of their first requests."""
        return [stream for _, stream in sorted(self._streams, key=lambda each: each[0])]

    def trained_streams(self, result: Step | None) -> list[TokenStream]:
        """Returns the streams, with a loss on the tokens of the result's training trace if it has one. Raises
        RequestRefused if the trace is not one of this session."""
        trace = check_trace(result.training_trace) if result is not None else None
        return self.streams if trace is None else with_loss_of(trace, self.streams)

    @property
    def temperature(self) -> float:
        return self._policy.sampling.temperature

    @property
    def busy(self) -> bool:
        """Whether replies are being sampled."""
        return bool(self._running)

    def end(self, reason: str, result: Step | None = None) -> None:
        """Takes no more requests, and drops those that run."""
        if self.ended:
            return
        self.ended, self.result = reason, result
        for each in self._running:
            each.cancel()

    async def ask(self, requests: Sequence[PolicyRequest]) -> PolicyReply:
        """Samples replies to a request of one prompt, or of several, and records all of them or none: the agent sees
        none of a request that fails. Raises RequestRefused, before anything is sampled if one of the prompts is to
        blame."""
        self._check_open()
        if self._requests + len(requests) > self._rules.max_turns:
            self.limit = f"the agent sent more than workflow.max_turns={self._rules.max_turns} requests"
            raise invalid(self.limit, code="max_turns")
        asked = [self._checked(each) for each in requests]
        first, self._requests = self._requests, self._requests + len(asked)
        turn = asyncio.ensure_future(self._turn())  # one for all prompts: each conversation waits once
        running = [asyncio.ensure_future(self._sample(each, number, turn)) for number, each in enumerate(asked, first)]
        try:
            sampled = await asyncio.gather(*running)
            self._check_open()
            shown = [_shown(each) for each in sampled]
        except BaseException:
            turn.cancel()
            for each in running:
                each.cancel()
            for ended in await asyncio.gather(*running, return_exceptions=True):
                if isinstance(ended, _Sampled):
                    ended.release()
            raise
        for one, choices in zip(sampled, shown, strict=True):
            for at, choice in enumerate(choices):
                self._record(one.asked, choice, one.place if at == 0 else None, (one.number, at))
        prompts = tuple(each.prompt.tokens for each in asked)
        return PolicyReply(secrets.token_hex(12), prompts, tuple(choice for choices in shown for choice in choices))

    def _checked(self, request: PolicyRequest) -> _Asked:
        """Returns a request with its prompt and sampling parameters. Raises RequestRefused."""
        sampling = self._sampling(request)
        renderer = self._renderer(request)
        prompt = self._prompt(request, renderer)
        sampling = replace(sampling, max_tokens=self._max_tokens(request, renderer, len(prompt.tokens)))
        return _Asked(request, renderer, prompt, sampling)

    async def _turn(self) -> None:
        """Waits until the requests of all sessions are sampled together."""
        if self._barrier is not None:
            await self._barrier.wait_turn(self._place)

    async def _sample(self, asked: _Asked, number: int, turn: Awaitable[None]) -> _Sampled:
        """Samples the replies to one prompt, after `turn`."""
        place = self._claim(asked.prompt, asked.sampling)
        seeded = self._seeded(asked.request, asked.sampling, number)
        sampled = _Sampled(asked, number, place)
        try:
            completions = await self._generate(asked.prompt.tokens, asked.request, seeded, turn)
        except BaseException:
            sampled.release()
            raise
        return replace(sampled, completions=completions)

    def count(self, request: PolicyRequest) -> int:
        """Returns the number of prompt tokens of a request. Raises RequestRefused."""
        self._check_open()
        return len(self._prompt(request, self._renderer(request)).tokens)

    def _check_open(self) -> None:
        if self.ended:
            raise RequestRefused(409, f"the session has ended: {self.ended}", "session_ended")

    def _renderer(self, request: PolicyRequest) -> Renderer:
        renderer = self._policy.renderer
        try:
            return renderer.with_tools(request.tools) if request.tools else renderer
        except Exception as error:  # a template may raise anything for schemas that it did not expect
            raise invalid(_said(error), "tools", "unsupported_value") from error

    def _prompt(self, request: PolicyRequest, renderer: Renderer) -> Prompt:
        """Returns the tokens to sample from. Raises RequestRefused if the chat template cannot write the request."""
        try:
            if request.prompt is not None:
                return self._history.tokens_of(request.prompt)
            return self._history.prompt_of(request.messages, renderer, _schemas(request))
        except Exception as error:
            raise invalid(_said(error), "messages") from error

    def _max_tokens(self, request: PolicyRequest, renderer: Renderer, length: int) -> int:
        """Returns the largest length of the reply. One that the client chose must fit the context, as in OpenAI's API;
        otherwise it is what the context has left, up to the limit of the session. Raises RequestRefused."""
        limit, room = self._policy.sampling.max_tokens, renderer.room(length)
        wanted = None if request.max_tokens is None else min(request.max_tokens, limit)
        if room is None:
            return limit if wanted is None else wanted
        if room >= (wanted or 1):
            return wanted or min(limit, room)
        reply = f"max_tokens={wanted}" if wanted else "a reply"
        self.limit = f"a prompt of {length} tokens and {reply} do not fit the context of {length + room} tokens"
        raise invalid(f"{self.limit}; shorten the conversation", "messages", "context_length_exceeded")

    def _sampling(self, request: PolicyRequest) -> Sampling:
        """Returns the sampling parameters: those of the session, unless clients may choose others."""
        own = self._policy.sampling
        given = {key: value for key, value in request.sampling.items() if value != getattr(own, key) or key == "seed"}
        if self._rules.client_sampling != "allow":
            given.pop("seed", None)  # the run's own random numbers
        if given and self._rules.client_sampling == "refuse":
            asked = ", ".join(f"{key}={value:g}" for key, value in given.items())
            used = ", ".join(f"{key}={getattr(own, key):g}" for key in given)
            raise invalid(
                f"{asked}: rollouts of this run are sampled with {used}, as the trainer expects; leave it out of the "
                "request, or set workflow.client_sampling=ignore",
                next(iter(given)),
                "unsupported_value",
            )
        if self._rules.client_sampling == "ignore":
            self.ignored.update(given)
            given = {}
        stop = (*own.stop, *request.stop)
        return replace(own, stop=stop, conversation=self.conversation, **_typed(given))

    def _seeded(self, request: PolicyRequest, sampling: Sampling, number: int) -> Sampling:
        """Returns the sampling parameters with the random stream of a request: that of the sample and the number of the
        request, unless the client chose a seed."""
        if "seed" in request.sampling and self._rules.client_sampling == "allow":
            return sampling
        return replace(sampling, seed=sampling.seed + (number + 1) * REQUEST_STREAM, prompt_index=self._place)

    def _claim(self, prompt: Prompt, sampling: Sampling) -> Place | None:
        """Returns the place whose stream the reply will extend; None if it starts a new stream, since another
        reply continues that place or was sampled differently."""
        place = prompt.place
        if place is None or place.continued or place.sampling != _distribution(sampling):
            return None
        place.continued = True
        return place

    async def _generate(
        self, tokens: tuple[int, ...], request: PolicyRequest, sampling: Sampling, turn: Awaitable[None]
    ) -> list[Completion]:
        """Samples in a task that `end` can cancel."""
        running = asyncio.ensure_future(self._wait_and_sample(tokens, request, sampling, turn))
        self._running.add(running)
        try:
            return await running
        except asyncio.CancelledError:
            if self.ended:
                self._check_open()
            raise
        finally:
            self._running.discard(running)

    async def _wait_and_sample(
        self, tokens: tuple[int, ...], request: PolicyRequest, sampling: Sampling, turn: Awaitable[None]
    ) -> list[Completion]:
        await turn
        try:
            return await self._policy.engine.generate(tokens, request.n, sampling)
        except Exception as error:
            chosen = request.prompt is not None or self._rules.client_sampling == "allow"
            if chosen and isinstance(error, ValueError | IndexError | ModelError):  # such as an unknown token
                raise invalid(str(error), code="rejected") from error
            self.failure = error  # no fault of the agent: it fails the run, as in other workflows
            raise RequestRefused(500, f"sampling failed ({type(error).__name__})", "engine_failed") from error

    def _record(self, asked: _Asked, choice: Choice, place: Place | None, order: tuple[int, int]) -> None:
        """Appends the reply to the stream of its conversation, or to a new one."""
        prompt = asked.prompt
        if place is None:
            stream = TokenStream(prompt.tokens)
            self._streams.append((order, stream))
        else:
            stream = place.stream
            text = "\n".join(f"[{each.role}] {each.content}" for each in prompt.more)
            role = prompt.more[-1].role if prompt.more else "user"
            stream.extend(prompt.tokens[place.end :], role, text)
        stream.add_reply(choice.completion)
        self._history.places.append(
            Place(
                shown_with(prompt, choice.message),
                prompt.messages,
                choice.completion.tokens,
                _schemas(asked.request),
                _distribution(asked.sampling),
                stream,
                len(stream.tokens),
            )
        )


def _shown(sampled: _Sampled) -> list[Choice]:
    """Returns the replies to a prompt as the client sees them."""
    asked, renderer = sampled.asked, sampled.asked.renderer
    return [
        show(
            each,
            renderer.token_texts(each.tokens),
            renderer.parse_reply(asked.prompt.messages, each.tokens),
            f"{sampled.number}_{at}",
            _stop_of(each, asked.prompt, asked.request, renderer),
        )
        for at, each in enumerate(sampled.completions)
    ]


def _schemas(request: PolicyRequest) -> str:
    """Returns the JSON schemas of a request's tools as text that can be compared."""
    return json.dumps(request.tools, sort_keys=True) if request.tools else ""


def _stop_of(completion: Completion, prompt: Prompt, request: PolicyRequest, renderer: Renderer) -> str | None:
    """Returns the stop string of the request that ended a reply to a conversation."""
    if not request.stop or not prompt.messages or completion.finish != "stop":
        return None
    return find_stop(completion, renderer.text_of(prompt.messages, completion.tokens), request.stop)


def _said(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    return f"the chat template cannot write this request ({type(error).__name__}: {error})"


def _typed(given: Mapping[str, float]) -> dict[str, Any]:
    return {key: int(value) if key in ("seed", "top_k") else value for key, value in given.items()}


def _distribution(sampling: Sampling) -> tuple[object, ...]:
    """Returns the parameters that change log-probs."""
    return (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
