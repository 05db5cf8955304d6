"""The command line, which also writes the weights of every version and the samples of every step to a file.

python recorded_run.py FILE train quickstart ...
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dojang.__main__ import main
from dojang.track.file_tracker import FileTracker
from dojang.types import Group
from dojang.weight_sync.versions import WeightVersions

__all__: list[str] = []


def record(path: str) -> None:
    weights: dict[int, dict[str, torch.Tensor]] = {}
    samples: dict[int, list[tuple[Any, ...]]] = {}
    publish, write = WeightVersions.publish, FileTracker.groups

    def keep_weights(
        self: WeightVersions, version: int, tensors: Mapping[str, torch.Tensor], *rest: Any, **options: Any
    ) -> None:
        weights[version] = {name: each.detach().clone() for name, each in tensors.items()}
        publish(self, version, tensors, *rest, **options)

    def keep_samples(self: FileTracker, step: int, split: str, groups: Sequence[Group]) -> None:
        write(self, step, split, groups)
        if split == "train":
            samples[step] = [
                (
                    each.tokens.tolist(),
                    each.mask.tolist(),
                    each.logprobs.tolist(),
                    [(span.version, span.start, span.end) for span in each.spans],
                )
                for group in groups
                for each in group.samples
            ]
            torch.save((weights, samples), path)

    WeightVersions.publish = keep_weights  # type: ignore[method-assign]
    FileTracker.groups = keep_samples  # type: ignore[method-assign]


if __name__ == "__main__":  # vLLM's processes import this file
    record(sys.argv.pop(1))
    main()
