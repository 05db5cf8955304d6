"""Tokens of a step: sampled, prefilled and trained on."""

from collections.abc import Mapping
from dataclasses import dataclass

from dojang.config.run_config import RunConfig

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

    def batches(self, role: str) -> int:
        """Number of micro-batches of a step on one rank: samples of a group stay together if they fit."""
        lengths, most = self.lengths[role], self.micro[role]
        group = lengths.prompt + self.samples * lengths.answer
        if lengths.shared and group <= most:
            return max(self.updates, -(-self.prompts // (most // group)))
        return max(self.updates, -(-self.read(role) // most))

    def contexts(self, role: str) -> int:
        """Sum of the context lengths of all trained tokens (attention work)."""
        prompt, answer = self.lengths[role].prompt, self.lengths[role].answer
        return self.asked(role) * prompt * prompt // 2 + self.sequences * (prompt * answer + answer * answer // 2)


def measure(config: RunConfig, lengths: Mapping[str, Lengths], *, gpu: bool, data_ranks: Mapping[str, int]) -> Work:
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
    return Work(rollout.prompts_per_step, samples, config.train.minibatches, micro, lengths)
