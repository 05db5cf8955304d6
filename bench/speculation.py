"""Speculative decoding by n-grams beside the same engine without it: tokens per second of a few samples at a time.

    python bench/speculation.py --model smollm2-135m-instruct --data data/gsm8k --sequences 1,2,4,8 --draft-tokens 4

Groups of `--sequences` samples answer the first `--prompts` questions of GSM8K, one group after the other. N-grams need
real text: a model with random weights repeats nothing. The tokens are the same with and without up to rounding, and
the notes tell how many samples differ. Rounds are interleaved; the median counts.
"""

import asyncio
import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.engine.decode import StepInputs
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Sampling
from dojang.weight_sync.versions import WeightVersions
from gsm8k_samples import add_options, gsm8k_prompts, pretrained, timed_samples
from machine import Row, arguments, numbers, report
from shapes import fast_dtype


@dataclass
class Decoded:
    """Samples of one round, with the decode steps and draft tokens they took."""

    seconds: float = 0.0
    texts: list[tuple[int, ...]] = field(default_factory=list)
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))


def counted(engine: TorchEngine, found: Decoded) -> None:
    """Counts steps and draft tokens from now on. On a GPU most steps without any start in `continue_decoding`."""
    runner = engine._scheduler._runner
    decode, continue_decoding = runner.decode, runner.continue_decoding

    def count_continued(kept: Any, rows: Any, inputs: StepInputs) -> Any:
        found.steps += len(inputs.uniform_RN)
        return continue_decoding(kept, rows, inputs)

    def count(tokens: Any, positions: Any, inputs: StepInputs) -> Any:
        found.steps += len(inputs.uniform_RN) if not any(inputs.drafts) else 1
        found.drafted += sum(map(len, inputs.drafts))
        result = decode(tokens, positions, inputs)
        if not any(inputs.drafts):
            return result

        def wait() -> Any:
            sampled = result()
            found.accepted += int((sampled.count_N - 1).sum())
            return sampled

        return wait

    runner.decode = count  # type: ignore[method-assign]
    runner.continue_decoding = count_continued  # type: ignore[method-assign]


def play(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[tuple[int, ...]],
    sampling: Sampling,
    sequences: int,
    draft_tokens: int,
) -> Decoded:
    """Samples every prompt `sequences` times, one prompt after the other."""
    engine = TorchEngine(
        model,
        tokenizer,
        WeightVersions(model.dtype),
        max_num_seqs=sequences,
        kv_cache_gb=1.0,
        speculative_tokens=draft_tokens,
    )
    found = Decoded()
    warmed = partial(counted, engine, found)
    groups, found.seconds = asyncio.run(timed_samples(engine, prompts, sampling, sequences, warmed))
    found.texts = [each.tokens for group in groups for each in group]
    return found


def row(sequences: int, draft_tokens: int, mine: list[Decoded], plain: list[Decoded]) -> Row:
    """The median round of both."""
    speeds = [statistics.median(each.tokens / each.seconds for each in rounds) for rounds in (mine, plain)]
    own, other = mine[0], plain[0]
    different = sum(a != b for a, b in zip(own.texts, other.texts, strict=True))
    per_step = own.tokens / own.steps / (other.tokens / other.steps)
    share = own.accepted / own.drafted if own.drafted else 0.0
    return Row(
        f"{sequences} sequence{'s' * (sequences > 1)} at a time",
        f"{draft_tokens} draft tokens",
        "none",
        speeds[0],
        speeds[1],
        "tok/s",
        speeds[0] / speeds[1],
        f"{per_step:.2f}x tokens per step, {share:.0%} of draft tokens accepted, {different} of {len(own.texts)} texts "
        "differ",
    )


def main() -> None:
    parser = arguments(__doc__)
    add_options(parser)
    parser.add_argument("--sequences", type=numbers, default=[1, 2, 4, 8], help="samples of a prompt, N,...")
    parser.add_argument("--draft-tokens", type=numbers, default=[4], help="rollout.engine.speculative_tokens, N,...")
    parser.add_argument("--temperature", type=float, default=1.0)
    options = parser.parse_args()
    model, tokenizer = pretrained(options.model, fast_dtype(options.device), options.device)
    prompts = gsm8k_prompts(options.data, tokenizer, options.prompts, options.max_tokens)
    sampling = Sampling(options.temperature, options.max_tokens)
    rows = []
    for sequences in options.sequences:
        rounds = [
            {count: play(model, tokenizer, prompts, sampling, sequences, count) for count in (0, *options.draft_tokens)}
            for _ in range(options.rounds)
        ]
        for count in options.draft_tokens:
            rows.append(row(sequences, count, [each[count] for each in rounds], [each[0] for each in rounds]))
    report("speculation", rows, options.json)


if __name__ == "__main__":
    main()
