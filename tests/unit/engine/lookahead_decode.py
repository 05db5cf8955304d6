"""Steps that go on without looking, as those of a GPU do, by plain forward passes on any machine."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from dojang.engine.decode import Drawn, Turn, draw
from dojang.engine.scheduler import Batch
from dojang.types import Sampling


class Blind:
    """Three turns at a time, whose results are handed out only when they are asked for."""

    def __init__(self, batch: Batch, model: PreTrainedModel) -> None:
        self._batch, self._model = batch, model
        self._texts: list[list[int]] = []
        self.unseen = self.went_on = 0

    def turns(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        return min(3, max(left))

    def take(self, token_N: Sequence[int], position_N: Sequence[int], turn: Turn) -> Callable[[], Drawn]:
        assert not self.unseen, "rows are only known when everything has been looked at"
        self._texts = [[*row.request.prompt, *row.tokens] for row in self._batch._rows]
        assert [text[-1] for text in self._texts] == list(token_N)
        assert [len(text) - 1 for text in self._texts] == list(position_N)
        return self._begun(turn)

    def goes_on(self, samplings: Sequence[Sampling]) -> bool:
        return True

    def go_on(self, kept: Sequence[int], turn: Turn) -> Callable[[], Drawn]:
        assert self.unseen == 1
        self.went_on += 1
        self._texts = [self._texts[at] for at in kept]
        return self._begun(turn)

    def forget(self) -> None:
        assert not self.unseen

    def _begun(self, turn: Turn) -> Callable[[], Drawn]:
        drawn = [self._once(Turn(turn.samplings, uniform_N[None])) for uniform_N in turn.uniform_RN]
        self.unseen += 1

        def seen() -> Drawn:
            self.unseen -= 1
            turns = ((each.token_RN, each.logp_RN, each.plain_RN) for each in drawn)
            return Drawn(*map(np.concatenate, zip(*turns, strict=True)))

        return seen

    def _once(self, turn: Turn) -> Drawn:
        most = self._model.config.max_position_embeddings  # who has reached it is written on for nothing
        texts = [torch.tensor(text[-most:]) for text in self._texts]
        logits = self._model(pad_sequence(texts, batch_first=True)).logits  # causal: what is padded behind is not seen
        drawn = draw(logits[range(len(texts)), [len(text) - 1 for text in texts]], turn)
        for text, token in zip(self._texts, drawn.token_RN[0].tolist(), strict=True):
            text.append(token)
        return drawn
