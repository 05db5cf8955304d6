"""Distillation from a teacher with another tokenizer: the teacher reads the same text in its own tokens.

The teacher gets its own rendering of the prompt (its chat template, the same messages), its tokens of the student's
text, and its end-of-turn token where the student wrote its own. Log-probs are compared by text (token_alignment.py).
Tokens without a counterpart get no signal from the teacher, instead of a wrong one:

    - from the first special token inside a completion on, and an incomplete character at its end;
    - text that the teacher's tokenizer changes, such as letters that are not in Unicode's normal form;
    - the last chunk of a completion cut by its length: the teacher reads a word cut anywhere in tokens that it would
      not have written, and would find it improbable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from dojang.types import Completion, Group, Message, Sample
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.token_alignment import align, chunk_gaps
from dojang.workflows.token_bytes import TokenBytes

__all__ = ["Retokenizer"]

_END = b"\xff"
"""Stands for the end of a turn: this byte is in no UTF-8 text."""
HintedMessages = Callable[[Group, Sample], Sequence[Message] | None]
"""Messages that the teacher reads before a sample; None where it has no hint."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A completion as bytes."""

    pieces: list[bytes]
    """Bytes of its leading tokens, up to the first that is no text, in whole characters."""
    ends: bool
    """Whether the end-of-turn token follows the pieces."""
    cut: bool
    """Whether the text stops where the student did not mean to end it."""


class Retokenizer:
    """Translates samples for a teacher with another tokenizer, and compares its log-probs with the student's."""

    def __init__(
        self,
        student: PreTrainedTokenizerBase,
        teacher: PreTrainedTokenizerBase,
        *,
        context: int | None,
        renderer: ChatRenderer,
        messages: HintedMessages | None = None,
    ) -> None:
        """`context` is the teacher's context length, `renderer` renders its prompts, and `messages` adds hints to
        them. Raises ConfigError for tokenizers whose tokens cannot be spelled in bytes."""
        self._student, self._teacher = TokenBytes(student), TokenBytes(teacher)
        self._context, self._renderer = context, renderer
        self._messages = messages

    def __call__(self, group: Group) -> list[Sample | None]:
        """Returns the samples of a group in the teacher's tokens; None where it has no hint. A sample that cannot be
        scored, such as one longer than the teacher's context, has no completion there."""
        rendered: dict[tuple[Message, ...], tuple[tuple[int, ...], int]] = {}
        found = list[Sample | None]()
        for sample in group.samples:
            messages = group.problem.messages if self._messages is None else self._messages(group, sample)
            if messages is None:
                found.append(None)
                continue
            asked = tuple(messages)
            if asked not in rendered:
                rendered[asked] = self._renderer.render(asked), self._renderer.end_of_turn(asked)
            found.append(self._read(sample, *rendered[asked]))
        return found

    def check(self, messages: Sequence[Message]) -> None:
        """Raises ConfigError if the teacher's prompt cannot be rendered, or no token ends its turn."""
        self._renderer.render(messages)
        self._renderer.end_of_turn(messages)

    def compare(self, sample: Sample, read: Sample, logprobs: Sequence[float]) -> list[float | None]:
        """Returns log student - log teacher of each sampled token, from the teacher's log-probs of the sample that it
        read; None for tokens without a counterpart."""
        written, theirs = self._written(sample), list[bytes]()
        if read.mask.any():
            tokens: list[int] = read.tokens[read.mask].tolist()
            theirs = _leading(self._teacher.spell(tokens[:-1] if written.ends else tokens))
            theirs += [_END] * (written.ends and len(theirs) == len(tokens) - 1)
        ends = align([*written.pieces, *[_END] * written.ends], theirs)
        if written.cut and len(ends) and ends[-1, 1] == len(theirs):
            ends = ends[:-1]
        return chunk_gaps(ends, sample.sampled(sample.logprobs), read.sampled(logprobs))

    def _read(self, sample: Sample, prompt: tuple[int, ...], end: int) -> Sample:
        written = self._written(sample)
        tokens = self._teacher.encode(b"".join(written.pieces).decode()) + [end] * written.ends
        if self._context is not None and len(prompt) + len(tokens) > self._context:
            tokens = []
        completion = Completion(tuple(tokens), (0.0,) * len(tokens), sample.text, sample.finish, sample.version)
        return Sample.of(prompt, completion, sample.verdict, sample.index, temperature=sample.temperature)

    def _written(self, sample: Sample) -> _Written:
        tokens: list[int] = sample.tokens[sample.mask].tolist()
        ends = sample.finish == "stop" and bool(tokens) and self._student.is_special(tokens[-1])
        text = tokens[:-1] if ends else tokens
        pieces = _whole_characters(_leading(self._student.spell(text)))
        whole = len(pieces) == len(text)
        return _Written(pieces, ends and whole, not whole or sample.finish == "length")


def _leading(pieces: Sequence[bytes | None]) -> list[bytes]:
    """Returns the pieces before the first None."""
    stop = pieces.index(None) if None in pieces else len(pieces)
    return [each for each in pieces[:stop] if each is not None]


def _whole_characters(pieces: list[bytes]) -> list[bytes]:
    """Returns the most leading pieces that are valid UTF-8 together."""
    text = b"".join(pieces)
    try:
        text.decode()
    except UnicodeDecodeError as error:
        kept, end = list(pieces), len(text)
        # The text before the error is valid, and so is a part of it that does not end before a continuation byte.
        while kept and (end > error.start or (end < error.start and text[end] & 0xC0 == 0x80)):
            end -= len(kept.pop())
        return kept
    return pieces
