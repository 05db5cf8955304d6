"""Token stream of a conversation: the tokens that were sampled are the tokens that are trained."""

import copy
from collections.abc import Sequence

from dojang.types import Completion, Finish, Sample, Span, Turn, Verdict

__all__ = ["TokenStream"]


class TokenStream:
    """Tokens of a conversation: prompt, sampled replies, and the environment's messages between them."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens = list(prompt)
        self.mask = [False] * len(self.tokens)
        self.logprobs = [0.0] * len(self.tokens)
        self.spans: list[Span] = []
        self.turns: list[Turn] = []
        self.texts: list[str] = []
        self.finish: Finish = "stop"

    def extend(self, tokens: Sequence[int], role: str, text: str, logprobs: Sequence[float] | None = None) -> None:
        """Appends a turn; with log-probs it was sampled."""
        start = len(self.tokens)
        self.tokens += tokens
        self.mask += [logprobs is not None] * len(tokens)
        self.logprobs += [0.0] * len(tokens) if logprobs is None else logprobs
        self.turns.append(Turn(role, start, len(self.tokens)))
        self.texts.append(text)

    def add_reply(self, completion: Completion) -> None:
        """Appends sampled tokens."""
        start = len(self.tokens)
        spans = completion.spans or (Span(completion.version, 0, len(completion.tokens)),)
        self.spans += [Span(each.version, start + each.start, start + each.end) for each in spans]
        self.extend(completion.tokens, "assistant", completion.text, completion.logprobs)
        self.finish = completion.finish

    def copy(self) -> "TokenStream":
        """Returns a stream of the same tokens, with lists that can be changed."""
        made = copy.copy(self)
        made.mask, made.logprobs = list(self.mask), list(self.logprobs)
        return made

    def sample(self, verdict: Verdict, index: int, part: int, temperature: float) -> Sample:
        return Sample(
            tokens=self.tokens,  # type: ignore[arg-type]  # Sample makes arrays
            mask=self.mask,  # type: ignore[arg-type]
            logprobs=self.logprobs,  # type: ignore[arg-type]
            text="\n".join(self.texts),
            finish=self.finish,
            version=self.spans[0].version if self.spans else 0,
            verdict=verdict,
            index=index,
            turn=part,
            temperature=temperature,
            spans=tuple(self.spans),
            turns=tuple(self.turns),
        )
