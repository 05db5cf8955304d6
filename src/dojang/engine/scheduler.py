"""Continuous batching: sequences enter as slots become free and leave as they end, one token for all at every step.

A step reads some tokens of prompts that wait, at most a chunk of them so that nobody waits long for a long prompt, puts
samples whose prompt has been read into free slots, and draws one token for every slot in use. What samples that wait
have in common is read once.

Nothing here knows of threads or of time; `torch_engine.py` does. All of it is to be called in torch's inference mode.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from dojang.engine.attention import Piece, over_prefixes
from dojang.engine.decode import Drawn, EagerSteps, Steps, Turn, draw
from dojang.engine.decoder import Attend, Decoder
from dojang.engine.kv_cache import Budget, Prefix, Slots, is_out_of_memory
from dojang.engine.sequence import Request, Row
from dojang.engine.stop_criteria import Stopper
from dojang.types import Completion, Finish

__all__ = ["Batch"]


@dataclass(eq=False)
class _Flight:
    """Turns that have begun, and whose results nobody has seen yet."""

    rows: list[Row]
    """As they were at the beginning: some may have ended meanwhile."""
    left: list[int]
    """Tokens each might still get before."""
    turns: int
    result: Callable[[], Drawn]


_SPENT = Prefix(())
_AHEAD = 8
"""Of one slot in so many, the next prompt is read before it is free."""
_CHUNK, _CHUNK_GPU, _LEAST_CHUNK = 512, 8192, 16
_MUCH = 32
"""So many tokens of difference are worth copying a sequence for."""


class Batch:
    """All sequences of an engine."""

    def __init__(
        self,
        decoder: Decoder,
        stopper: Stopper,
        *,
        slots: int,
        budget: Budget,
        chunk: int | None,
        context: int | None = None,
    ) -> None:
        self._decoder = decoder
        self._stopper = stopper
        self._chunk = chunk or (_CHUNK_GPU if decoder.fused else _CHUNK)
        self.context = min(context or decoder.shape.context, decoder.shape.context)
        self.version = 0
        self._slots = Slots(
            decoder.shape, decoder.dtype, decoder.device, most=slots, budget=budget, scattered=decoder.fused
        )
        self._most = slots
        """How many may be decoded together: fewer once memory did not suffice."""
        self._steps, self._over_prefixes, self._fill = _means(decoder, self._slots, slots)
        self._prefixes: WeakValueDictionary[tuple[int, ...], Prefix] = WeakValueDictionary()
        """Those that somebody waits for, so that other requests for the same can share them."""
        self._waiting: deque[Row] = deque()
        self._rows: list[Row] = []
        """Those being decoded; the place of each is its slot."""
        self._flight: _Flight | None = None
        """Between two steps only: whoever changes more than who is there settles first."""

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._waiting)

    @property
    def running(self) -> int:
        return len(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def check(self, length: int) -> None:
        """ModelError if a sequence of so many tokens, or of all that the context holds, never fits into memory."""
        self._slots.check(min(length, self.context))

    def add(self, request: Request) -> None:
        """Queue a request."""
        room = min(request.sampling.max_tokens, self.context - len(request.prompt))
        for index in range(request.n):
            past = request.resume.get(index)
            if past and (past.finish != "abort" or len(past.tokens) >= room):
                request.done[index] = replace(past, finish="length") if past.finish == "abort" else past
                continue
            tokens = request.prompt + (past.tokens if past else ())
            prefix = self._prefixes.setdefault(tokens, Prefix(tokens))
            self._waiting.append(Row.of(request, index, prefix, room))
        if len(request.done) == request.n:
            request.deliver(request)

    def abort(self, requests: Collection[Request]) -> None:
        """End the samples of requests where they are, and deliver them."""
        self._settle()
        others, self._waiting = self._waiting, deque(row for row in self._waiting if row.request not in requests)
        for row in (each for each in others if each.request in requests):
            self._end(row, "abort")
        self._retire({place: "abort" for place, row in enumerate(self._rows) if row.request in requests})
        self._rest()

    def drop(self, requests: Collection[Request]) -> None:
        """Forget requests for which nobody waits."""
        self._waiting = deque(row for row in self._waiting if row.request not in requests)
        for place in sorted((at for at, row in enumerate(self._rows) if row.request in requests), reverse=True):
            self._vacate(place)
        self._rest()

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """By their names in a checkpoint. To be changed only inside of `changing`."""
        return self._decoder.weights

    @contextmanager
    def changing(self, version: int) -> Iterator[None]:
        """Other weights from here on. Sequences under way go on with the keys and values they have."""
        self._settle()
        yield
        self._decoder.refresh()
        self.version = version
        self._forget()

    def recompute(self) -> None:
        """Let sequences under way be read again from their beginning, by the weights there are now."""
        self._settle()
        self._send_back(0)

    def _forget(self) -> None:
        """What has been read, also for those who are gone: somebody may still hold on to one of theirs."""
        for prefix in list(self._prefixes.values()):
            prefix.forget()

    def _send_back(self, kept: int) -> None:
        """Let all rows but the first wait again, for their tokens to be read."""
        while len(self._rows) > kept:
            row = self._rows.pop()
            tokens = row.request.prompt + tuple(row.tokens)
            row.prefix = self._prefixes.setdefault(tokens, Prefix(tokens))
            self._waiting.appendleft(row)

    def sleep(self) -> None:
        """Give back the memory of keys and values. What is under way is read again afterwards."""
        self.recompute()
        self._forget()
        self._slots.release()
        self._steps.forget()

    def step(self) -> None:
        """Some tokens more for everybody. Where memory does not suffice, less is tried at a time from then on."""
        if self._waiting or not self._rows:
            self._settle()
        if self._flight is None:
            self._refill()
        if not self._rows:
            return self._rest()
        try:
            flight = self._flight or self._decode()
            # While nobody waits for a slot, the next turns begin before these have been looked at: a GPU never idles.
            self._flight = None
            if not self._waiting and self._steps.goes_on([row.request.sampling for row in flight.rows]):
                self._flight = self._follow(flight)
            self._read()  # a GPU decodes meanwhile
            self._land(flight)
            if not self._rows:
                self._settle()  # it has begun for nobody
            self._rest()
        except BaseException as error:
            self._flight = None  # it goes on from what has not been seen
            if not is_out_of_memory(error) or len(self._rows) <= 1:
                raise
            self._most = len(self._rows) // 2
            self._send_back(self._most)

    def _rest(self) -> None:
        """With nothing left to do, give memory back to whoever learns; but a GPU's graphs know where it is."""
        if not self.busy and not self._decoder.fused:
            self._slots.release()

    def _refill(self) -> None:
        fresh = not self._rows
        while fresh and self._read():  # nobody has to wait for it, so all slots are filled first
            self._admit()
        self._admit()

    def _settle(self) -> None:
        """Look at what has begun."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._land(flight)

    # Reading prompts --------------------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Read a chunk of the prompts that come next; whether there was anything to read."""
        try:
            return self._read_chunk()
        except RuntimeError as error:
            if not is_out_of_memory(error) or self._chunk <= _LEAST_CHUNK:
                raise
            self._chunk //= 2
            return True

    def _read_chunk(self) -> bool:
        pieces, left = [], self._chunk
        for prefix in self._next_prefixes():
            if left <= 0:
                break
            start, size = prefix.done, len(prefix.tokens)
            if start == size:
                continue
            pieces.append(Piece(prefix, start, min(size, start + left)))
            left -= pieces[-1].end - start
        if pieces:
            self._run(sorted(pieces, key=lambda piece: piece.start == 0))
        return bool(pieces)

    def _next_prefixes(self) -> list[Prefix]:
        """Of the samples that can enter now, and of some that may soon, in order."""
        capacity = min(self._most, self._slots.capacity)
        soon = capacity - len(self._rows) + max(1, capacity // _AHEAD)
        rows = [row for _, row in zip(range(soon), self._waiting, strict=False)]
        return list(dict.fromkeys(row.prefix for row in rows))

    def _run(self, pieces: Sequence[Piece]) -> None:
        device = self._decoder.device
        tokens = [token for piece in pieces for token in piece.prefix.tokens[piece.start : piece.end]]
        positions = [position for piece in pieces for position in range(piece.start, piece.end)]
        ends = np.cumsum([piece.end - piece.start for piece in pieces]) - 1
        whole = [at for at, piece in enumerate(pieces) if piece.end == len(piece.prefix.tokens)]
        x_BE = self._decoder.forward(
            torch.tensor(tokens, device=device),
            torch.tensor(positions, device=device),
            self._over_prefixes(pieces, self._decoder),
            torch.tensor(ends[whole], device=device),
        )
        for piece in pieces:
            piece.prefix.done = piece.end
        if whole:
            for at, logits_V in zip(whole, self._decoder.logits(x_BE), strict=True):
                pieces[at].prefix.logits_V = logits_V

    # Entering and leaving ---------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Move samples whose prompt has been read into free slots, and draw their first token from its scores."""
        first, entering = len(self._rows), list[Row]()
        while self._waiting and (row := self._waiting[0]).prefix.logits_V is not None:
            if len(self._rows) >= self._most or not self._slots.make_room(min(row.most, self.context), len(self._rows)):
                break
            self._rows.append(self._waiting.popleft())
            entering.append(row)
        if not entering:
            return
        try:
            drawn = self._begin(entering, first)
        except RuntimeError as error:
            if not is_out_of_memory(error) or len(self._rows) == 1:
                raise
            self._most = len(self._rows) // 2
            self._send_back(min(first, self._most))
            return
        for row in entering:
            row.prefix = _SPENT  # its memory goes when nobody waits for it any more
        self._take(entering, drawn, range(first, first + len(entering)))

    def _begin(self, entering: Sequence[Row], first: int) -> Drawn:
        """Fill the slots from `first` on with what these rows begin with, and draw their first tokens."""
        places: dict[Prefix, list[int]] = {}
        for place, row in enumerate(entering, first):
            places.setdefault(row.prefix, []).append(place)
        self._fill(self._slots, places)
        logits_BV = torch.stack([row.prefix.logits_V for row in entering if row.prefix.logits_V is not None])
        return draw(logits_BV, self._turn(entering, 1))

    def _decode(self) -> _Flight:
        """Begin the next turns for all rows."""
        rows = list(self._rows)
        left = [min(row.most, self.context) - row.length for row in rows]
        turns = self._steps.turns([row.request.sampling for row in rows], left)
        tokens, positions = [row.tokens[-1] for row in rows], [row.length - 1 for row in rows]
        return _Flight(rows, left, turns, self._steps.take(tokens, positions, self._turn(rows, turns)))

    def _follow(self, flight: _Flight) -> _Flight | None:
        """Begin the turns after those, for all rows that may go on."""
        decoded = set(self._rows)
        kept = [at for at, row in enumerate(flight.rows) if row in decoded and flight.left[at] > flight.turns]
        if not kept:
            return None
        rows = [flight.rows[at] for at in kept]
        left = [flight.left[at] - flight.turns for at in kept]
        turns = self._steps.turns([row.request.sampling for row in rows], left)
        return _Flight(rows, left, turns, self._steps.go_on(kept, self._turn(rows, turns, flight.turns)))

    def _land(self, flight: _Flight) -> None:
        places = {row: place for place, row in enumerate(self._rows)}
        self._take(flight.rows, flight.result(), [places.get(row, -1) for row in flight.rows])

    def _turn(self, rows: Sequence[Row], turns: int, start: int = 0) -> Turn:
        """For so many turns, `start` turns from here."""
        uniform_NR = np.zeros((len(rows), turns))
        for numbers_R, row in zip(uniform_NR, rows, strict=True):
            given = row.numbers(start, turns)
            numbers_R[: len(given)] = given
        return Turn([row.request.sampling for row in rows], np.ascontiguousarray(uniform_NR.T))

    def _take(self, rows: Sequence[Row], drawn: Drawn, places: Iterable[int]) -> None:
        """Give these rows what was drawn for them, up to where each ends; -1 is the place of one that has ended."""
        drawn_N = (each.T.tolist() for each in (drawn.token_RN, drawn.logp_RN, drawn.plain_RN))
        taken = [each for each in zip(rows, places, *drawn_N, strict=True) if each[1] >= 0]
        ends = [
            self._stopper.end(row.tokens, tokens, min(row.most, self.context) - row.length, row.request.sampling)
            for row, _, tokens, _, _ in taken
        ]
        ended = dict[int, Finish]()
        for (row, place, tokens, logps, plains), (count, finish) in zip(taken, ends, strict=True):
            row.tokens += tokens[:count]
            row.logprobs += logps[:count]
            if row.plain is not None:
                row.plain += plains[:count]
            row.note_version(self.version, count)
            if finish:
                ended[place] = finish
        self._retire(ended)

    def _retire(self, ended: Mapping[int, Finish]) -> None:
        """End the rows in these slots, from the last on: each is replaced by rows behind it."""
        for place in sorted(ended, reverse=True):
            row = self._rows[place]
            self._vacate(place)
            self._end(row, ended[place])

    def _end(self, row: Row, finish: Finish) -> None:
        request = row.request
        request.done[row.index] = Completion(
            tokens=tuple(row.tokens),
            logprobs=tuple(row.logprobs),
            text=self._stopper.text(row.tokens, request.sampling.stop),
            finish=finish,
            version=row.spans[0].version if row.spans else self.version,
            plain_logprobs=tuple(row.plain or ()),
            spans=tuple(row.spans),
        )
        if len(request.done) == request.n:
            request.deliver(request)

    def _vacate(self, place: int) -> None:
        """Free a slot. Every run of slots behind it gives its longest to the run before, while
        that is much longer than the last row; where it is not, the last row comes instead."""
        rows, run = self._rows, self._slots.run
        while (start := (place // run + 1) * run) < len(rows):
            heir = max(range(start, min(start + run, len(rows))), key=lambda at: rows[at].length)
            if rows[heir].length < rows[-1].length + _MUCH:
                break
            self._move(heir, place)
            place = heir
        if place < len(rows) - 1:
            self._move(len(rows) - 1, place)
        rows.pop()

    def _move(self, source: int, target: int) -> None:
        self._slots.move(source, target, self._rows[source].length)
        self._rows[target] = self._rows[source]


_OverPrefixes = Callable[[Sequence[Piece], Decoder], Attend]
_Fill = Callable[[Slots, Mapping[Prefix, Sequence[int]]], None]


def _means(decoder: Decoder, slots: Slots, most: int) -> tuple[Steps, _OverPrefixes, _Fill]:
    """How to decode, to read prompts, and to begin slots with them, on this device."""
    if not decoder.fused:
        return EagerSteps(decoder, slots), over_prefixes, Slots.fill
    from dojang.engine.cuda_graphs import GraphSteps, fill_scattered, over_packed  # loads Triton, which is for GPUs

    packs = (
        decoder.dtype in (torch.bfloat16, torch.float16)
        and decoder.shape.head % 8 == 0
        and torch.cuda.get_device_capability(decoder.device) >= (8, 0)
    )
    return GraphSteps(decoder, slots, most), over_packed if packs else over_prefixes, fill_scattered
