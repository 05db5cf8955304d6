"""An episode: its token streams and rewards. What was sampled is what is trained, over every turn.

Each turn extends the same stream. Where the chat template rewrites earlier turns (such as dropped thinking), the stream
cannot be extended: the episode goes on in a new one, and becomes several samples with the same reward.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from dojang.core.errors import ConfigError, TooLong
from dojang.core.user_code import describe_exception
from dojang.environments.base import Step
from dojang.environments.calls import EnvironmentFailed
from dojang.environments.token_stream import TokenStream
from dojang.protocols import Renderer
from dojang.types import Completion, Finish, Message, Outcome, Sample, Verdict, plain_prompt

__all__ = ["Episode", "writing"]

_SOLVED = 1.0
"""Sum of rewards from which on an episode counts as accepted, if the environment does not say."""


@contextmanager
def writing(messages: Sequence[Message]) -> Iterator[None]:
    """Raises EnvironmentFailed where the chat template cannot write an environment's messages: it may raise anything
    for messages that it did not expect. TooLong passes."""
    try:
        plain_prompt(messages)
        yield
    except TooLong:
        raise
    except Exception as error:
        said = str(error) if isinstance(error, ConfigError | ValueError) else describe_exception(error)
        raise EnvironmentFailed(f"its messages cannot be written: {said}") from error


class Episode:
    """State of one episode."""

    def __init__(self, index: int, temperature: float) -> None:
        self.index = index
        self.conversation = secrets.token_hex(8)
        """Id of the episode, for the engine's prefix cache: another evaluation has episodes with the same seeds."""
        self._temperature = temperature
        self._streams: list[TokenStream] = []
        self._messages: list[Message] = []
        """The conversation before the reply that was sampled last."""
        self._reply: tuple[int, ...] = ()
        self._steps: list[Step] = []
        self._details: list[str] = []
        self._failure = ""

    @property
    def tokens(self) -> list[int]:
        """Tokens to continue."""
        return self._streams[-1].tokens

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation before the reply that was sampled last."""
        return self._messages

    def begin(self, messages: Sequence[Message], prompt: Sequence[int]) -> None:
        """Starts the conversation."""
        self._messages = list(messages)
        self._streams.append(TokenStream(prompt))

    def add_streams(self, streams: Sequence[TokenStream]) -> None:
        """Adds streams that were recorded elsewhere."""
        self._streams += streams

    def add_reply(self, completion: Completion) -> None:
        """Appends sampled tokens."""
        self._streams[-1].add_reply(completion)
        self._reply = completion.tokens

    def add_step(self, step: Step) -> None:
        """Records the environment's result for the last reply."""
        own = 0.0 if step.verdict is None else step.verdict.reward or 0.0
        stream = self._streams[-1]
        stream.turns[-1] = replace(stream.turns[-1], reward=step.reward + own)
        self._steps.append(step)

    def go_on(self, messages: Sequence[Message], renderer: Renderer) -> bool:
        """Appends the environment's messages; False if no further reply fits the context. Starts a new stream if the
        chat template rewrites what came before. Raises EnvironmentFailed if it cannot write the messages."""
        said = renderer.text_of(self._messages, self._reply)
        more = [*self._messages, Message("assistant", said), *messages]
        try:
            with writing(more):
                tokens = renderer.continue_chat(self._messages, self._reply, said, messages)
                prompt = renderer.render(more) if tokens is None else ()
        except TooLong:
            return False
        self._messages = more
        if tokens is None:
            self._streams.append(TokenStream(prompt))
            return True
        if not renderer.fits(len(self.tokens) + len(tokens)):
            return False
        text = "\n".join(f"[{each.role}] {each.content}" for each in messages)
        self._streams[-1].extend(tokens, messages[-1].role, text)
        return True

    def stop(self, reason: str, verdict: Verdict | None, finish: Finish | None = None) -> None:
        """Ends the episode before the environment did, with the verdict that it gave for this case."""
        self.note(reason)
        if verdict is not None:
            self.add_step(replace(self._steps.pop(), verdict=verdict))
        if finish is not None:
            self._streams[-1].finish = finish

    def note(self, detail: str) -> None:
        """Adds to the explanation that is shown with the sample."""
        self._details.append(detail)

    def fail(self, reason: str) -> None:
        """Ends the episode without a reward."""
        self._failure = reason

    def samples(self) -> list[Sample]:
        """Returns one sample per stream, all with the verdict of the episode. A stream without replies, which an
        episode that failed may have, is only recorded if there is no other."""
        verdict = self._verdict()
        streams = [each for each in self._streams if each.turns] or self._streams[:1] or [TokenStream(())]
        return [each.sample(verdict, self.index, part, self._temperature) for part, each in enumerate(streams)]

    def _verdict(self) -> Verdict:
        if self._failure:
            return Verdict(Outcome.JUDGE_ERROR, None, detail=self._failure)
        graded = next((each.verdict for each in reversed(self._steps) if each.verdict is not None), None)
        said = next((each.solved for each in reversed(self._steps) if each.solved is not None), None)
        reward = sum(each.reward for each in self._steps) + ((graded.reward or 0.0) if graded else 0.0)
        detail = "; ".join(filter(None, [*(each.detail for each in self._steps[-1:]), *self._details]))
        if graded is not None:
            parts = {**graded.parts, **self._parts()}
            detail = "; ".join(filter(None, [graded.detail, detail]))
            return replace(graded, reward=reward, parts=parts, terms={}, detail=detail)
        solved = reward >= _SOLVED if said is None else said
        outcome = Outcome.ACCEPTED if solved else Outcome.WRONG
        return Verdict(outcome, reward, passed=int(solved), parts=self._parts(), detail=detail)

    def _parts(self) -> dict[str, float]:
        """Sums of the terms of the reward."""
        found: dict[str, float] = {}
        for step in self._steps:
            for name, value in step.parts.items():
                found[name] = found.get(name, 0.0) + float(value)
        return found
