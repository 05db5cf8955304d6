"""GenerateEngine: a slow engine on transformers' `generate`, for models that the torch engine does not compute.

`generate` runs the model and its cache, whatever they are; tokens are sampled here, by the same code and random numbers
as in the torch engine. Each batch runs until its longest sample ends, and every sample prefills its own prompt.
"""

import asyncio
import copy
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from dojang.core.out_of_memory import explain_out_of_memory, is_out_of_memory
from dojang.engine.decode import StepInputs, sample
from dojang.engine.rng import uniforms
from dojang.engine.stop_criteria import StopCriteria, end_tokens
from dojang.engine.validate import check_clean, check_request
from dojang.engine.weight_update import StagedUpdate, apply_update, load_weights
from dojang.protocols import WeightStore
from dojang.types import Completion, Finish, Metrics, Sampling, Span

__all__ = ["GenerateEngine"]

_UNLIMITED = 1 << 31
_MORE_MEMORY = "lower rollout.engine.max_num_seqs or rollout.max_tokens"
_PROBE = ((5, 6, 7), (5, 6, 7, 8, 9, 10, 11))
"""Two prompts of different lengths, to find out whether the model takes left padding."""


@dataclass(eq=False)
class _Request:
    prompt: tuple[int, ...]
    sampling: Sampling
    future: "asyncio.Future[list[Completion]]"
    samples: "list[_Sample]" = field(default_factory=list)


@dataclass(eq=False)
class _Sample:
    """One sample of a request."""

    request: _Request
    uniform_T: "np.ndarray[tuple[int], np.dtype[np.float64]]"
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    plain_logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None


class GenerateEngine:
    """A RolloutEngine with its own copy of a model of transformers."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        weights: WeightStore,
        *,
        max_num_seqs: int,
        context: int | None = None,
        threads: int | None = None,
        dtype: torch.dtype | None = None,
        float32_head: bool = False,
        weight_sync: Literal["full", "delta"] = "full",
    ) -> None:
        """`weight_sync`: load full weights or deltas."""
        self._stop_criteria = StopCriteria(tokenizer, end_tokens(model, tokenizer))
        self._model = copy.deepcopy(model).train(False).requires_grad_(False)
        torch.nn.Module.to(self._model, dtype or model.dtype)
        # The checkpoint's defaults (repetition penalty, top-p) must not change the distribution.
        self._model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        self._pad = tokenizer.pad_token_id or 0
        config = self._model.config.get_text_config()
        own = next((value for name in _CONTEXT_KEYS if (value := getattr(config, name, None))), _UNLIMITED)
        self._context: int = min(context or own, own)
        self._vocabulary: int = config.vocab_size
        if float32_head:
            _use_float32_head(self._model)
        self._weights, self._parameters = weights, dict(self._model.named_parameters())
        self._deltas, self._loaded = weight_sync == "delta", False
        self._max_num_seqs, self._threads = max_num_seqs, threads
        self._pads: bool | None = None
        """Whether left padding leaves the results unchanged; None: not tried yet."""
        self._waiting: deque[_Sample] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        """Held while the model runs or its weights change."""
        self._version, self._dirty, self._closed = 0, "", False
        self._pause_s = 0.0
        """Seconds without decoding of the last update."""

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        if self._closed:
            raise RuntimeError("the engine is closed")
        check_clean(self._dirty)
        check_request(prompt, sampling, self._context, self._vocabulary)
        limit = min(sampling.max_tokens, self._context - len(prompt))
        request = _Request(tuple(prompt), sampling, asyncio.get_running_loop().create_future())
        for index in range(n):
            request.samples.append(_Sample(request, uniforms(sampling.seed, sampling.prompt_index, index, limit)))
        self._waiting.extend(request.samples)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        with explain_out_of_memory("sampling", _MORE_MEMORY):
            return await request.future

    async def load(self, version: int) -> Metrics:
        base = self._version if self._deltas and self._loaded and not self._dirty else None
        with explain_out_of_memory("the engine's weights", _MORE_MEMORY):
            whole = await load_weights(self._begin, self._weights, version, base=base)
        self._loaded = True
        return {"timing_s/load_pause": self._pause_s, **({"weights/whole": float(whole)} if self._deltas else {})}

    async def _begin(self, version: int, *, base: int | None = None) -> StagedUpdate:
        async def apply(update: StagedUpdate, expected: str | None) -> None:
            async with self._lock:
                started = time.monotonic()
                try:
                    await asyncio.to_thread(apply_update, update, self._parameters, expected)
                except BaseException as error:
                    self._dirty = f"the update to version {version} failed ({type(error).__name__}: {error})"
                    raise
                self._version, self._dirty, self._pause_s = version, "", time.monotonic() - started

        return StagedUpdate(version, base, self._parameters, apply, lambda: None)

    async def close(self) -> None:
        self._closed = True
        if self._worker is not None:
            await asyncio.wait([self._worker])  # it stops after its current token

    async def _work(self) -> None:
        """Run batches until no sample waits."""
        while self._waiting and not self._closed:
            await asyncio.sleep(0)  # requests made at once share a batch
            async with self._lock:
                if self._pads is None and len({len(each.request.prompt) for each in self._waiting}) > 1:
                    self._pads = await asyncio.to_thread(self._takes_padding)
                batch = self._next_batch()
                try:
                    await asyncio.to_thread(self._run, batch)
                except Exception as error:
                    if is_out_of_memory(error) and len(batch) > 1:
                        self._max_num_seqs = len(batch) // 2
                        self._waiting.extendleft(reversed(batch))
                    else:
                        self._fail(error, batch)
            self._deliver(batch)
        if self._closed:
            for request in {each.request for each in self._waiting}:
                request.future.cancel()

    def _next_batch(self) -> list[_Sample]:
        """Take the next samples; of one prompt length only, if the model does not take left padding."""
        self._waiting = deque(each for each in self._waiting if not each.request.future.done())
        size = len(self._waiting[0].request.prompt) if self._waiting else 0
        fitting = [each for each in self._waiting if self._pads or len(each.request.prompt) == size]
        batch = fitting[: self._max_num_seqs]
        chosen = set(batch)
        self._waiting = deque(each for each in self._waiting if each not in chosen)
        return batch

    def _deliver(self, batch: Sequence[_Sample]) -> None:
        for request in dict.fromkeys(each.request for each in batch):
            if self._closed:
                request.future.cancel()
            elif not request.future.done() and all(each.finish for each in request.samples):
                request.future.set_result([self._completion(each) for each in request.samples])

    def _completion(self, each: _Sample) -> Completion:
        assert each.finish is not None
        return Completion(
            tokens=tuple(each.tokens),
            logprobs=tuple(each.logprobs),
            text=self._stop_criteria.text(each.tokens, each.request.sampling),
            finish=each.finish,
            version=self._version,
            plain_logprobs=tuple(each.plain_logprobs),
            spans=(Span(self._version, 0, len(each.tokens)),),
        )

    def _fail(self, error: Exception, batch: Sequence[_Sample]) -> None:
        for request in {each.request for each in batch}:
            if not request.future.done():
                request.future.set_exception(error)

    # In a thread ------------------------------------------------------------------------------------------------------

    def _run(self, batch: Sequence[_Sample]) -> None:
        """Sample all tokens of a batch."""
        if not batch:
            return
        for each in batch:  # from the beginning: a batch that ran out of memory is run again
            each.tokens, each.logprobs, each.plain_logprobs, each.finish = [], [], [], None
        sampler = _Sampler(batch, self._stop_criteria, lambda: self._closed)
        self._generate(
            [each.request.prompt for each in batch],
            max(len(each.uniform_T) for each in batch),
            logits_processor=LogitsProcessorList([sampler]),
            stopping_criteria=StoppingCriteriaList([_AllFinished(sampler)]),
        )

    def _takes_padding(self) -> bool:
        """Whether a prompt gets the same logits beside a longer one as alone."""
        seen = list[Tensor]()

        def keep(_: Tensor, scores: Tensor) -> Tensor:
            seen.append(scores[0].clone())
            return scores

        for prompts in (_PROBE[:1], _PROBE):
            self._generate(prompts, 1, logits_processor=LogitsProcessorList([keep]))
        alone_V, padded_V = seen
        tolerance = 0.03 if self._model.dtype in (torch.bfloat16, torch.float16) else 1e-3
        return bool((alone_V - padded_V).abs().max() <= tolerance * alone_V.abs().max())

    @torch.inference_mode()
    def _generate(self, prompts: Sequence[Sequence[int]], max_tokens: int, **options: object) -> None:
        longest = max(map(len, prompts))
        missing = [longest - len(prompt) for prompt in prompts]
        ids = [[self._pad] * count + list(prompt) for count, prompt in zip(missing, prompts, strict=True)]
        mask = [[0] * count + [1] * len(prompt) for count, prompt in zip(missing, prompts, strict=True)]
        device, threads = self._model.device, torch.get_num_threads()
        config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, pad_token_id=self._pad, max_new_tokens=max_tokens
        )
        torch.set_num_threads(self._threads or threads)
        try:
            self._model.generate(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                generation_config=config,
                **options,
            )
        finally:
            torch.set_num_threads(threads)  # it becomes the default of later threads


class _Sampler(LogitsProcessor):
    """Samples a token for each row and leaves it as the only choice of `generate`, which decodes greedily."""

    def __init__(self, batch: Sequence[_Sample], stop_criteria: StopCriteria, is_closed: Callable[[], bool]) -> None:
        self._batch, self._stop_criteria, self._is_closed = batch, stop_criteria, is_closed
        self._samplings = [each.request.sampling for each in batch]
        self._step = 0

    @property
    def finished(self) -> bool:
        ends = (each.finish or each.request.future.done() for each in self._batch)
        return self._is_closed() or all(ends)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step, self._step = self._step, self._step + 1
        uniform_1N = np.array([[each.uniform_T[min(step, len(each.uniform_T) - 1)] for each in self._batch]])
        sampled = sample(scores, StepInputs(self._samplings, uniform_1N))
        rows = zip(self._batch, sampled.token_RN[0], sampled.logp_RN[0], sampled.plain_RN[0], strict=True)
        for each, token, logp, plain in rows:
            if each.finish is None:
                left = len(each.uniform_T) - len(each.tokens)
                _, each.finish = self._stop_criteria.check(each.tokens, [int(token)], left, each.request.sampling)
                each.tokens.append(int(token))
                each.logprobs.append(float(logp))
                each.plain_logprobs.append(float(plain))
        token_N = torch.from_numpy(sampled.token_RN[0]).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter_(1, token_N[:, None], 0.0)


class _AllFinished(StoppingCriteria):
    """Ends the batch when all its samples have finished."""

    def __init__(self, sampler: _Sampler) -> None:
        self._sampler = sampler

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        return torch.full((len(input_ids),), self._sampler.finished, device=input_ids.device)


_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


def _use_float32_head(model: PreTrainedModel) -> None:
    """Compute logits in float32."""
    head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]

    def forward(x: Tensor) -> Tensor:
        bias = getattr(head, "bias", None)
        return functional.linear(x.float(), head.weight.float(), None if bias is None else bias.float())

    head.forward = forward
