"""Continuous batching: sequences enter as slots become free and leave as they end, one token for all at every step.

A step reads some tokens of prompts that wait, at most a chunk of them so that nobody waits long for a long prompt, puts
samples whose prompt has been read into free slots, and draws one token for every slot in use. What samples that wait
have in common is read once.

Nothing here knows of threads or of time; `torch.py` does. All of it is to be called in torch's inference mode.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from dojang.engines.attention import Piece, over_prefixes, over_slots
from dojang.engines.decoder import Decoder
from dojang.engines.rng import uniforms
from dojang.engines.sampler import Limits, sample_tokens
from dojang.engines.slots import Prefix, Slots
from dojang.engines.stopping import Stopper
from dojang.types import Completion, Finish, Sampling, Span

__all__ = ["Batch", "Request"]


@dataclass(eq=False)
class Request:
    """Samples that somebody waits for together."""

    prompt: tuple[int, ...]
    n: int
    sampling: Sampling
    deliver: Callable[["Request"], None]
    """Called when the last of them has ended."""
    resume: Mapping[int, Completion] = field(default_factory=dict)
    """Samples that there are already. Those that were aborted go on where they were."""
    done: dict[int, Completion] = field(default_factory=dict)

    @property
    def completions(self) -> list[Completion]:
        return [self.done[index] for index in range(self.n)]


@dataclass(eq=False)
class _Row:
    """One sequence."""

    request: Request
    index: int
    prefix: Prefix
    draws: np.ndarray[tuple[int], np.dtype[np.float64]]
    """A random number for every token it may have."""
    tokens: list[int]
    logprobs: list[float]
    plain: list[float]
    spans: list[Span]

    @property
    def length(self) -> int:
        return len(self.request.prompt) + len(self.tokens)

    @property
    def most(self) -> int:
        return len(self.request.prompt) + self.request.sampling.max_tokens


_SPENT = Prefix(())


class Batch:
    """All sequences of an engine."""

    def __init__(
        self, decoder: Decoder, stopper: Stopper, *, slots: int, budget: int, chunk: int, context: int | None = None
    ) -> None:
        self._decoder = decoder
        self._stopper = stopper
        self._chunk = chunk
        self.context = min(context or decoder.shape.context, decoder.shape.context)
        self.version = 0
        self._slots = Slots(decoder.shape, decoder.dtype, decoder.device, most=slots, budget=budget)
        self._prefixes: WeakValueDictionary[tuple[int, ...], Prefix] = WeakValueDictionary()
        """Those that somebody waits for, so that other requests for the same can share them."""
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        """Those being decoded; the place of each is its slot."""

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._waiting)

    @property
    def running(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request."""
        sampling = request.sampling
        for index in range(request.n):
            past = request.resume.get(index)
            if past and past.finish != "abort":
                request.done[index] = past
                continue
            tokens = request.prompt + (past.tokens if past else ())
            self._waiting.append(
                _Row(
                    request=request,
                    index=index,
                    prefix=self._prefixes.setdefault(tokens, Prefix(tokens)),
                    draws=uniforms(sampling.seed, sampling.ordinal, index, sampling.max_tokens),
                    tokens=list(past.tokens) if past else [],
                    logprobs=list(past.logprobs) if past else [],
                    plain=list(past.plain_logprobs) if past else [],
                    spans=_spans(past) if past else [],
                )
            )
        if len(request.done) == request.n:
            request.deliver(request)

    def abort(self, request: Request) -> None:
        """End a request's samples where they are, and deliver it."""
        self._waiting, others = deque(), self._waiting
        for row in others:
            if row.request is request:
                self._end(row, "abort")
            else:
                self._waiting.append(row)
        self._retire({place: "abort" for place, row in enumerate(self._rows) if row.request is request})

    def drop(self, request: Request) -> None:
        """Forget a request for which nobody waits."""
        self._waiting = deque(row for row in self._waiting if row.request is not request)
        for place in sorted((at for at, row in enumerate(self._rows) if row.request is request), reverse=True):
            self._vacate(place)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """By their names in a checkpoint. To be changed only inside of `changing`."""
        return self._decoder.weights

    @contextmanager
    def changing(self, version: int) -> Iterator[None]:
        """Other weights from here on. Sequences under way go on with the keys and values they have."""
        yield
        self._decoder.refresh()
        self.version = version
        for row in self._waiting:
            row.prefix.forget()

    def recompute(self) -> None:
        """Let sequences under way be read again from their beginning, by the weights there are now."""
        for row in reversed(self._rows):
            tokens = row.request.prompt + tuple(row.tokens)
            row.prefix = self._prefixes.setdefault(tokens, Prefix(tokens))
            self._waiting.appendleft(row)
        self._rows.clear()

    def sleep(self) -> None:
        """Give back the memory of keys and values. What is under way is read again afterwards."""
        self.recompute()
        for row in self._waiting:
            row.prefix.forget()
        self._slots.release()

    def step(self) -> None:
        """A token more for everybody."""
        self._read()
        self._admit()
        if self._rows:
            self._decode()

    # Reading prompts --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """A chunk of the prompts that come next."""
        pieces, left = [], self._chunk
        for prefix in self._next_prefixes():
            if left <= 0:
                break
            start, size = prefix.done, len(prefix.tokens)
            if start == size:
                continue
            if prefix.keys_LKTD is None:
                shape = self._decoder.shape
                sizes = (shape.layers, shape.kv_heads, size, shape.head)
                prefix.keys_LKTD = torch.empty(sizes, dtype=self._decoder.dtype, device=self._decoder.device)
                prefix.values_LKTD = torch.empty_like(prefix.keys_LKTD)
            pieces.append(Piece(prefix, start, min(size, start + left)))
            left -= pieces[-1].end - start
        if pieces:
            self._run(pieces)

    def _next_prefixes(self) -> list[Prefix]:
        """Of the samples that could enter if all slots were free, in order."""
        rows = [row for _, row in zip(range(self._slots.capacity), self._waiting, strict=False)]
        return list(dict.fromkeys(row.prefix for row in rows))

    def _run(self, pieces: Sequence[Piece]) -> None:
        device = self._decoder.device
        tokens = [token for piece in pieces for token in piece.prefix.tokens[piece.start : piece.end]]
        positions = [position for piece in pieces for position in range(piece.start, piece.end)]
        x_NE = self._decoder.forward(
            torch.tensor(tokens, device=device),
            torch.tensor(positions, device=device),
            over_prefixes(pieces, self._decoder.shape),
        )
        ends = np.cumsum([piece.end - piece.start for piece in pieces]) - 1
        whole = [at for at, piece in enumerate(pieces) if piece.end == len(piece.prefix.tokens)]
        for piece in pieces:
            piece.prefix.done = piece.end
        if whole:
            logits_BV = self._decoder.logits(x_NE[torch.tensor([int(ends[at]) for at in whole], device=device)])
            for at, logits_V in zip(whole, logits_BV, strict=True):
                pieces[at].prefix.logits_V = logits_V

    # Entering and leaving ---------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Move samples whose prompt has been read into free slots, and draw their first token from its scores."""
        first, entering = len(self._rows), list[_Row]()
        while self._waiting and (row := self._waiting[0]).prefix.logits_V is not None:
            if not self._slots.make_room(min(row.most, self.context), len(self._rows)):
                break
            self._rows.append(self._waiting.popleft())
            entering.append(row)
        if not entering:
            return
        places: dict[Prefix, list[int]] = {}
        for place, row in enumerate(entering, first):
            places.setdefault(row.prefix, []).append(place)
        for prefix, slots in places.items():
            self._slots.put(slots, prefix)
        logits_BV = torch.stack([row.prefix.logits_V for row in entering if row.prefix.logits_V is not None])
        for row in entering:
            row.prefix = _SPENT  # its memory goes when nobody waits for it any more
        self._draw(entering, logits_BV, first)

    def _decode(self) -> None:
        device = self._decoder.device
        token_N = torch.tensor([row.tokens[-1] for row in self._rows], device=device)
        position_N = torch.tensor([row.length - 1 for row in self._rows], device=device)
        longest = max(row.length for row in self._rows)
        attend = over_slots(self._slots, position_N, longest, self._decoder.shape)
        self._draw(self._rows, self._decoder.logits(self._decoder.forward(token_N, position_N, attend)), 0)

    def _draw(self, rows: Sequence[_Row], logits_BV: Tensor, first: int) -> None:
        """One token for each of these rows, which are in the slots from `first` on."""
        samplings = [row.request.sampling for row in rows]
        device = logits_BV.device
        limits = None
        if any(each.top_k or each.top_p < 1 for each in samplings):
            limits = Limits(
                torch.tensor([each.top_k for each in samplings], device=device),
                torch.tensor([each.top_p for each in samplings], dtype=torch.float64, device=device),
            )
        draw = sample_tokens(
            logits_BV,
            torch.tensor([each.temperature for each in samplings], dtype=torch.float64, device=device),
            torch.tensor([row.draws[len(row.tokens)] for row in rows], dtype=torch.float64, device=device),
            limits,
            _bias(samplings, logits_BV),
        )
        drawn = zip(rows, draw.token_B.tolist(), draw.logp_B.tolist(), draw.plain_logp_B.tolist(), strict=True)
        ended = dict[int, Finish]()
        for place, (row, token, logp, plain) in enumerate(drawn, first):
            row.tokens.append(token)
            row.logprobs.append(logp)
            row.plain.append(plain)
            self._note_version(row)
            if finish := self._finish(row):
                ended[place] = finish
        self._retire(ended)

    def _note_version(self, row: _Row) -> None:
        count = len(row.tokens)
        if row.spans and row.spans[-1].version == self.version:
            row.spans[-1] = Span(self.version, row.spans[-1].start, count)
        else:
            row.spans.append(Span(self.version, count - 1, count))

    def _finish(self, row: _Row) -> Finish | None:
        sampling = row.request.sampling
        if row.tokens[-1] in sampling.stop_tokens:
            return "stop"
        finish = self._stopper.finish(row.tokens, sampling.max_tokens, sampling.stop)
        return "length" if finish is None and row.length >= self.context else finish

    def _retire(self, ended: Mapping[int, Finish]) -> None:
        """End the rows in these slots, from the last on: each is replaced by one behind it."""
        for place in sorted(ended, reverse=True):
            self._end(self._rows[place], ended[place])
            self._vacate(place)

    def _end(self, row: _Row, finish: Finish) -> None:
        request = row.request
        request.done[row.index] = Completion(
            tokens=tuple(row.tokens),
            logprobs=tuple(row.logprobs),
            text=self._stopper.text(row.tokens, request.sampling.stop),
            finish=finish,
            version=row.spans[0].version if row.spans else self.version,
            plain_logprobs=tuple(row.plain),
            spans=tuple(row.spans),
        )
        if len(request.done) == request.n:
            request.deliver(request)

    def _vacate(self, place: int) -> None:
        """Free a slot; the last row takes it over."""
        last = self._rows.pop()
        if place < len(self._rows):
            self._slots.move(len(self._rows), place, last.length)
            self._rows[place] = last


def _spans(past: Completion) -> list[Span]:
    if past.spans or not past.tokens:
        return list(past.spans)
    return [Span(past.version, 0, len(past.tokens))]


def _bias(samplings: Sequence[Sampling], logits_BV: Tensor) -> Tensor | None:
    if not any(each.bias for each in samplings):
        return None
    bias_BV = torch.zeros_like(logits_BV)
    for place, each in enumerate(samplings):
        for token, value in each.bias:
            bias_BV[place, token] = value
    return bias_BV
