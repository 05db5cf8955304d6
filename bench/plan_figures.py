"""Plans beside published figures without raw metrics: updates, rollouts and steps on one H200."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dojang.config import recipe
from dojang.planning.estimate import Subject, estimate
from dojang.planning.instances import INSTANCES
from dojang.planning.shapes import KNOWN, Shape, find_shape
from dojang.planning.speed import Machine, generate_s, optimizer_s, update_s
from dojang.planning.tokens_per_step import Lengths

__all__ = ["FIGURES", "Figure", "figures_table", "planned"]

HERE = INSTANCES["h200"]
SHAPES: Mapping[str, Shape | None] = {
    "135M": find_shape("smollm2-135m-instruct")[0],
    "0.5B": KNOWN["Qwen/Qwen2.5-0.5B"],
    "1.5B": find_shape("qwen2.5-coder-1.5b-instruct")[0],
    "7B": KNOWN["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"],
}


@dataclass(frozen=True)
class Figure:
    """A figure of a model: seconds of an update, of a rollout, or of a step."""

    name: str
    model: str
    part: str
    """update, rollout or step."""
    prompts: int
    lengths: Lengths
    seconds: float
    """Measured."""
    gradient_checkpointing: bool = False
    lora: bool = False
    max_num_seqs: int = 512
    zero_variance: float = 0.0
    max_tokens_per_microbatch: int = 16384
    fitted: bool = False


_UNIFORM, _GEOMETRIC = Lengths(48, 64, 256, 256), Lengths(48, 64, 256, 2048)
_LONG, _VARIED = Lengths(512, 512, 8192, 8192), Lengths(512, 768, 997, 4096)
_GSM8K = Lengths(112, 265, 215, 320)
_7B = Lengths(484, 1211, 1020, 1024)
FIGURES: Sequence[Figure] = (
    *(
        Figure(f"512 samples, {name}", model, "update", 64, lengths, seconds, fitted=True)
        for model, some in (("135M", (1.35, 1.22)), ("0.5B", (2.27, 2.24)))
        for name, lengths, seconds in zip(
            ("256 tokens each", "geometric lengths, mean 256"), (_UNIFORM, _GEOMETRIC), some, strict=True
        )
    ),
    *(
        Figure("8 samples of 8,192 tokens, checkpointing", model, "update", 1, _LONG, seconds, True, fitted=True)
        for model, seconds in (("135M", 1.19), ("0.5B", 1.82))
    ),
    # From an MFU of 29.8% and 24.2%, with the formula of docs/training.md.
    Figure("128 samples, geometric lengths, mean 1,024", "1.5B", "update", 16, _VARIED, 4.60),
    Figure("the same, checkpointing", "1.5B", "update", 16, _VARIED, 5.66, True),
    # From 24,300 and 8,900 tokens/s.
    Figure("256 samples, geometric lengths, mean 1,024", "1.5B", "rollout", 32, _VARIED, 10.5, max_num_seqs=256),
    Figure("256 samples, geometric lengths, mean 1,024", "7B", "rollout", 32, _VARIED, 28.7, max_num_seqs=256),
    Figure(
        "GSM8K, first steps, overlap",
        "1.5B",
        "step",
        64,
        _GSM8K,
        4.8,
        zero_variance=0.14,
        max_tokens_per_microbatch=8192,
    ),
    Figure("256 samples of 1,020 tokens, LoRA, checkpointing", "7B", "update", 32, _7B, 29.3, True, lora=True),
    Figure("the same", "7B", "step", 32, _7B, 39.0, True, lora=True, max_num_seqs=256),
)


def planned(figure: Figure) -> float:
    """Seconds that a plan of this figure has."""
    shape, lengths = SHAPES[figure.model], figure.lengths
    assert shape is not None
    machine, samples = Machine(HERE), 8 * figure.prompts
    if figure.part == "rollout":  # by an engine alone on the GPU
        return generate_s(machine, shape, lengths, samples, figure.prompts, figure.max_num_seqs)
    settings = [
        f"rollout.prompts_per_step={figure.prompts}",
        "rollout.group_size=8",
        f"rollout.max_tokens={lengths.longest_answer}",
        f"rollout.engine.max_num_seqs={figure.max_num_seqs}",
        f"train.gradient_checkpointing={str(figure.gradient_checkpointing).lower()}",
        f"train.max_tokens_per_microbatch={figure.max_tokens_per_microbatch}",
        *(["train.lora={rank: 16}"] if figure.lora else []),
    ]
    config = recipe.load("smollm2-gsm8k", settings)
    idle = {"policy": figure.zero_variance}
    subject = Subject(config, {"policy": shape}, {"policy": lengths}, zero_variance=idle)
    found = estimate(subject, HERE, ranks=1)
    if figure.part == "step":
        return found.times.step
    model = subject.planned_models()["policy"]
    learned = 0.0 if figure.lora else float(shape.parameters)
    passes = update_s(machine, model, found.work, "policy", found.layout)
    return passes + optimizer_s(machine, model, learned, found.layout)


def figures_table(tolerance: float) -> Iterator[str]:
    """Yields the lines of a Markdown table; bold beyond the tolerance."""
    yield "| model | figure | part | measured | planned | ratio |"
    yield "|---|---|---|---|---|---|"
    for each in FIGURES:
        seconds = planned(each)
        ratio = seconds / each.seconds
        said = f"{ratio:.2f}" if abs(ratio - 1) <= tolerance else f"**{ratio:.2f}**"
        name = each.name + (" (fitted)" if each.fitted else "")
        yield f"| {each.model} | {name} | {each.part} | {each.seconds:.3g} s | {seconds:.3g} s | {said} |"
