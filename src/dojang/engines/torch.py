"""A batched rollout engine on any transformers causal language model.

Requests made in the same turn of the event loop are decoded together, up to `slots` sequences at a time. The
prompt of a group is prefilled once and shared by its samples; finished sequences leave the batch. A request's
completions are handed over as soon as its last sample ends, so they can be judged while others still decode.

Tokens are drawn with numbers that belong to the sample alone (rng.py), so what is sampled depends on the batch
only through floating-point rounding. Not covered: refilling freed slots, paging, CUDA graphs.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from dojang.engines.rng import uniforms
from dojang.engines.sampler import sample_tokens
from dojang.engines.stopping import Stopper
from dojang.protocols import WeightStore
from dojang.types import Completion, Sampling

__all__ = ["TorchEngine"]

Deliver = Callable[["_Request"], None]


@dataclass(eq=False)
class _Request:
    prompt: tuple[int, ...]
    n: int
    sampling: Sampling
    future: asyncio.Future[list[Completion]]
    done: dict[int, Completion] = field(default_factory=dict)


@dataclass(eq=False)
class _Row:
    """One sequence being decoded."""

    request: _Request
    index: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class TorchEngine:
    """A RolloutEngine over a model of its own, refreshed from a weight store."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, weights: WeightStore, *, slots: int
    ) -> None:
        self._model = model
        self._weights = weights
        self._slots = slots
        self._version = 0
        self._stopper = Stopper(tokenizer, _end_tokens(model, tokenizer))
        self._waiting: list[_Request] = []
        self._drain: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollout")
        self._closed = False

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        if self._closed:
            raise RuntimeError("the engine is closed")
        future: asyncio.Future[list[Completion]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(tuple(prompt), n, sampling, future))
        if self._drain is None or self._drain.done():
            self._drain = asyncio.create_task(self._work())
        return await future

    async def load(self, version: int) -> None:
        own = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, tensor in self._weights.fetch(version).items():
                own[name].copy_(tensor)
        self._version = version

    async def close(self) -> None:
        self._closed = True
        if self._drain is not None:
            await asyncio.gather(self._drain, return_exceptions=True)
        self._thread.shutdown()

    async def _work(self) -> None:
        """Decode batch after batch until nobody waits."""
        loop = asyncio.get_running_loop()

        def deliver(request: _Request) -> None:
            loop.call_soon_threadsafe(_resolve, request)

        while self._waiting:
            batch = self._next_batch()
            try:
                await loop.run_in_executor(self._thread, self._decode, batch, deliver)
            except Exception as error:
                for request in batch:
                    if not request.future.done():
                        request.future.set_exception(error)
            if self._closed:
                for request in batch + self._waiting:
                    request.future.cancel()
                self._waiting.clear()

    def _next_batch(self) -> list[_Request]:
        """Whole requests, oldest first, as many as the slots hold (at least one)."""
        self._waiting = [request for request in self._waiting if not request.future.done()]  # nobody waits for these
        rows, count = 0, 0
        for request in self._waiting:
            if count and rows + request.n > self._slots:
                break
            rows, count = rows + request.n, count + 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    @torch.inference_mode()
    def _decode(self, batch: list[_Request], deliver: Deliver) -> None:
        """Runs in the engine's thread. Columns are decoding steps; rows leave as they end."""
        rows = [_Row(request, index) for request in batch for index in range(request.n)]
        state = _Decoding(self._model, [request.prompt for request in batch])
        state.keep([place for place, request in enumerate(batch) for _ in range(request.n)])
        draws_RT = _draws(rows)
        heat = [row.request.sampling.temperature for row in rows]
        temperature_R = torch.tensor(heat, dtype=torch.float64, device=state.device)
        live = list(range(len(rows)))  # which of `rows` each row of the state is
        position = 0
        while live and not self._closed:
            uniform_B = torch.from_numpy(draws_RT[live, position]).to(state.device)
            token_B, logp_B = sample_tokens(state.logits_BV, temperature_R[live], uniform_B)
            tokens, logprobs = token_B.tolist(), logp_B.tolist()
            position += 1
            going = [
                place
                for place, (row, token, logp) in enumerate(zip(live, tokens, logprobs, strict=True))
                if not self._append(rows[row], token, logp, deliver)
            ]
            if not going:
                break
            if len(going) < len(live):
                state.keep(going)
                token_B = token_B[torch.tensor(going, device=state.device)]
                live = [live[place] for place in going]
            state.forward(token_B)

    def _append(self, row: _Row, token: int, logp: float, deliver: Deliver) -> bool:
        """Add a token; True when the row has ended."""
        row.tokens.append(token)
        row.logprobs.append(logp)
        request, sampling = row.request, row.request.sampling
        finish = self._stopper.finish(row.tokens, sampling.max_tokens, sampling.stop)
        if finish is None:
            return False
        text = self._stopper.text(row.tokens, sampling.stop)
        request.done[row.index] = Completion(tuple(row.tokens), tuple(row.logprobs), text, finish, self._version)
        if len(request.done) == request.n:
            deliver(request)
        return True


class _Decoding:
    """The tensors of a batch: left-padded prompts, their KV cache, the logits of the next token."""

    def __init__(self, model: PreTrainedModel, prompts: Sequence[tuple[int, ...]]) -> None:
        self._model = model
        self.device = model.device
        width = max(map(len, prompts))
        ids = [(0,) * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        self._mask_BT = torch.tensor(mask, device=self.device)
        self._cache = DynamicCache(config=model.config)
        position_BT = (self._mask_BT.cumsum(-1) - 1).clamp(min=0)
        self.logits_BV = self._run(torch.tensor(ids, device=self.device), position_BT)

    def keep(self, places: list[int]) -> None:
        """Keep (or repeat) these rows, in this order."""
        index = torch.tensor(places, device=self.device)
        self._cache.batch_select_indices(index)
        self._mask_BT, self.logits_BV = self._mask_BT[index], self.logits_BV[index]

    def forward(self, token_B: Tensor) -> None:
        """Read one more token per row."""
        position_B1 = self._mask_BT.sum(-1, keepdim=True)
        self._mask_BT = torch.cat([self._mask_BT, torch.ones_like(position_B1)], dim=-1)
        self.logits_BV = self._run(token_B[:, None], position_B1)

    def _run(self, ids_BT: Tensor, position_BT: Tensor) -> Tensor:
        output = self._model(
            input_ids=ids_BT,
            attention_mask=self._mask_BT,
            position_ids=position_BT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_BV: Tensor = output.logits[:, -1]
        return logits_BV


def _draws(rows: Sequence[_Row]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    width = max(row.request.sampling.max_tokens for row in rows)
    table = np.empty((len(rows), width))
    for place, row in enumerate(rows):
        sampling = row.request.sampling
        table[place] = uniforms(sampling.seed, sampling.ordinal, row.index, width)
    return table


def _end_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Chat models may declare several ends; the tokenizer's own always counts."""
    declared = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = {tokenizer.eos_token_id, *(declared if isinstance(declared, list) else [declared])}
    return frozenset(token for token in ends if isinstance(token, int))


def _resolve(request: _Request) -> None:
    if not request.future.done():
        request.future.set_result([request.done[index] for index in range(request.n)])
