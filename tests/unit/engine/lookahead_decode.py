"""A DecodeRunner that decodes ahead of its results, as the GPU runner does, by plain forward passes on any device."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from dojang.engine.decode import SampledTokens, StepInputs, sample
from dojang.engine.scheduler import Scheduler
from dojang.types import Sampling


class LookaheadRunner:
    """Runs three steps at a time and returns the tokens only when asked."""

    def __init__(self, scheduler: Scheduler, model: PreTrainedModel) -> None:
        self._scheduler, self._model = scheduler, model
        self._texts: list[list[int]] = []
        self.unseen = self.went_on = 0

    def num_steps(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        return min(3, max(left))

    def decode(
        self, token_N: Sequence[int], position_N: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        assert not self.unseen, "the running sequences are known only after all results were collected"
        self._texts = [[*seq.request.prompt, *seq.tokens] for seq in self._scheduler._running]
        assert [text[-1] for text in self._texts] == list(token_N)
        assert [len(text) - 1 for text in self._texts] == list(position_N)
        return self._begun(inputs)

    def can_continue(self, samplings: Sequence[Sampling]) -> bool:
        return True

    def continue_decoding(
        self, kept: Sequence[int], rows: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        assert self.unseen == 1
        self.went_on += 1
        self._texts = [self._texts[at] for at in kept]
        assert len(rows) == len(kept)
        return self._begun(inputs)

    def _begun(self, inputs: StepInputs) -> Callable[[], SampledTokens]:
        drawn = [self._once(StepInputs(inputs.samplings, uniform_N[None])) for uniform_N in inputs.uniform_RN]
        self.unseen += 1

        def seen() -> SampledTokens:
            self.unseen -= 1
            steps = ((each.token_RN, each.logp_RN, each.plain_RN) for each in drawn)
            return SampledTokens(*map(np.concatenate, zip(*steps, strict=True)))

        return seen

    def _once(self, inputs: StepInputs) -> SampledTokens:
        most = (
            self._model.config.max_position_embeddings
        )  # a sequence at the limit is decoded on; its tokens are discarded
        texts = [torch.tensor(text[-most:]) for text in self._texts]
        logits = self._model(pad_sequence(texts, batch_first=True)).logits  # causal: right padding is not attended to
        drawn = sample(logits[range(len(texts)), [len(text) - 1 for text in texts]], inputs)
        for text, token in zip(self._texts, drawn.token_RN[0].tolist(), strict=True):
            text.append(token)
        return drawn
