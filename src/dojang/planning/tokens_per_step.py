"""Tokens of a step: sampled, prefilled and trained on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dojang.config.run_config import RunConfig
from dojang.planning.answer_lengths import mean_square

__all__ = ["Lengths", "Work", "measure"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts and completions of one model, in tokens."""

    prompt: int
    """Mean prompt length."""
    longest_prompt: int
    answer: int
    """Assumed mean completion length."""
    longest_answer: int
    shared: bool = True
    """Whether the samples of a problem have the same prompt."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one training step."""

    prompts: int
    samples: int
    updates: int
    micro: Mapping[str, int]
    """Tokens of a micro-batch, by role."""
    lengths: Mapping[str, Lengths]
    zero_variance: Mapping[str, float] = field(default_factory=dict)
    """Share of groups whose rewards are all equal, by role: 0 where it is not given."""

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    def of(self, role: str) -> tuple[int, int, int]:
        """Tokens of a micro-batch, of the longest sequence, and of one on average."""
        lengths = self.lengths[role]
        return self.micro[role], lengths.longest_prompt + lengths.longest_answer, lengths.prompt + lengths.answer

    def read(self, role: str) -> int:
        """Trained tokens of a step, with each distinct prompt once."""
        return self.asked(role) * self.lengths[role].prompt + self.answered(role)

    def asked(self, role: str) -> int:
        """Number of distinct prompts."""
        return self.prompts if self.lengths[role].shared else self.sequences

    def answered(self, role: str) -> int:
        """Tokens of all completions."""
        return self.sequences * self.lengths[role].answer

    def batches(self, role: str, share: float = 1.0) -> int:
        """Number of micro-batches of a step on one rank, of a share of its groups: samples of a group stay together if
        they fit."""
        if not share:
            return 0
        lengths, most = self.lengths[role], self.micro[role]
        prompt, answer, prompts = lengths.prompt, lengths.answer, math.ceil(share * self.prompts)
        together = self.samples if lengths.shared else 1
        sequences, group = prompts * self.samples, prompt + together * answer
        if group > most:
            together = max(1, (most - prompt) // answer)
            group = prompt + together * answer
        # Groups of different lengths leave half of one empty, on average.
        fitting = most / group - 0.5 if answer < lengths.longest_answer else most // group
        return max(self.updates, math.ceil(sequences / (together * max(1, fitting))))

    def contexts(self, role: str) -> int:
        """Sum of the context lengths of all trained tokens (attention work)."""
        lengths = self.lengths[role]
        prompt, answer = lengths.prompt, lengths.answer
        squared = round(mean_square(answer, lengths.longest_answer))
        return self.asked(role) * prompt * prompt // 2 + self.sequences * (prompt * answer + squared // 2)

    def copied_prompts(self, role: str) -> int:
        """Prompt tokens of a micro-batch whose keys and values attention copies, once for each sample of a group. Short
        completions leave room for more prompts: if their mean is not known, they are counted with one token."""
        lengths, most = self.lengths[role], self.micro[role]
        if not lengths.shared or self.samples == 1:
            return 0
        answer = lengths.answer if lengths.answer < lengths.longest_answer else 1
        groups = min(-(-self.prompts // self.updates), most / (lengths.prompt + self.samples * answer))
        return int(groups * self.samples * lengths.prompt)


def measure(
    config: RunConfig,
    lengths: Mapping[str, Lengths],
    *,
    gpu: bool,
    data_ranks: Mapping[str, int],
    zero_variance: Mapping[str, float] | None = None,
) -> Work:
    """Computes the work of a step; a micro-batch is never larger than the batch. `data_ranks` is the number of data
    parallel ranks of each role."""
    rollout, micro = config.rollout, dict[str, int]()
    samples = 1 if config.algo.name == "sft" else rollout.group_size  # SFT trains on one completion per row
    for role, each in config.roles().items():
        own = lengths[role]
        longest = own.longest_prompt + own.longest_answer
        prompts = -(-rollout.prompts_per_step // each.train.minibatches)
        whole = prompts * (own.longest_prompt + samples * own.longest_answer)
        micro[role] = max(longest, min(each.train.microbatch_tokens(gpu=gpu), -(-whole // data_ranks[role])))
    return Work(rollout.prompts_per_step, samples, config.train.minibatches, micro, lengths, zero_variance or {})
