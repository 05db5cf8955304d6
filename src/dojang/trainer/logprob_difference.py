"""Log-prob difference between engine and trainer for the same weights: rounding, or a defect."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dojang.types import Metrics

__all__ = ["LogprobDifference"]


@dataclass
class LogprobDifference:
    """Accumulates |engine log-prob - trainer log-prob| of tokens sampled with the current weights."""

    total: float = 0.0
    most: float = 0.0
    count: int = 0

    def add(self, gap_N: Tensor) -> None:
        if len(gap_N):
            self.total += float(gap_N.sum())
            self.most = max(self.most, float(gap_N.max()))
            self.count += len(gap_N)

    @staticmethod
    def metrics(parts: Sequence["LogprobDifference"]) -> Metrics:
        count = sum(part.count for part in parts)
        if not count:
            return {}
        mean = sum(part.total for part in parts) / count
        return {"actor/logprob_diff/mean": mean, "actor/logprob_diff/max": max(part.most for part in parts)}
