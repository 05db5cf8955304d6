"""How much there is to do in a step: tokens to draw, to read and to learn from."""

from collections.abc import Mapping
from dataclasses import dataclass

from dojang.config.run_config import RunConfig

__all__ = ["Lengths", "Work", "measure"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts and answers of one model."""

    prompt: int
    """The mean."""
    longest_prompt: int
    answer: int
    """The mean that is reckoned with."""
    longest_answer: int
    shared: bool = True
    """Whether the samples of a problem have the same prompt."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step of the loop."""

    prompts: int
    samples: int
    updates: int
    micro: Mapping[str, int]
    """Most tokens read at a time when learning, by role."""
    lengths: Mapping[str, Lengths]

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    def of(self, role: str) -> tuple[int, int]:
        """Most tokens read at a time, and those of the longest sequence."""
        lengths = self.lengths[role]
        return self.micro[role], lengths.longest_prompt + lengths.longest_answer

    def read(self, role: str) -> int:
        """Tokens a step learns from, and their prompts, each once."""
        return self.asked(role) * self.lengths[role].prompt + self.answered(role)

    def asked(self, role: str) -> int:
        """How many different prompts there are."""
        return self.prompts if self.lengths[role].shared else self.sequences

    def answered(self, role: str) -> int:
        """Tokens of all answers."""
        return self.sequences * self.lengths[role].answer

    def batches(self, role: str) -> int:
        """Micro-batches of a step, on one of them that learn: samples of a problem stay together where they fit."""
        lengths, most = self.lengths[role], self.micro[role]
        group = lengths.prompt + self.samples * lengths.answer
        if lengths.shared and group <= most:
            return max(self.updates, -(-self.prompts // (most // group)))
        return max(self.updates, -(-self.read(role) // most))

    def contexts(self, role: str) -> int:
        """How many tokens each of those sees, in all."""
        prompt, answer = self.lengths[role].prompt, self.lengths[role].answer
        return self.asked(role) * prompt * prompt // 2 + self.sequences * (prompt * answer + answer * answer // 2)


def measure(config: RunConfig, lengths: Mapping[str, Lengths], *, gpu: bool, data_ranks: Mapping[str, int]) -> Work:
    """What is asked of each model in a step; micro-batches are no larger than all there is. `data_ranks` are the parts
    the samples of each role are divided into."""
    rollout, micro = config.rollout, dict[str, int]()
    samples = 1 if config.algo.name == "sft" else rollout.group_size  # SFT trains on one completion per row
    for role, each in config.roles().items():
        own = lengths[role]
        budget = each.train.max_tokens_per_microbatch or (16384 if gpu else 2048)
        longest = own.longest_prompt + own.longest_answer
        prompts = -(-rollout.prompts_per_step // each.train.minibatches)
        whole = prompts * (own.longest_prompt + samples * own.longest_answer)
        micro[role] = max(longest, min(budget, -(-whole // data_ranks[role])))
    return Work(rollout.prompts_per_step, samples, config.train.minibatches, micro, lengths)
