"""Seconds of decoding, updates and optimizer steps: memory and FLOP bounds with measured efficiency (efficiency.py)."""

import math
from dataclasses import dataclass, replace

from dojang.planning.answer_lengths import mean_square, running_share
from dojang.planning.efficiency import (
    ATTENTION,
    BANDWIDTH,
    CPU_BANDWIDTH,
    CPU_BATCH_S,
    CPU_GFLOPS,
    CPU_LEARNING,
    CPU_ROW_S,
    CPU_STEP_S,
    CPU_TOKEN_S,
    DECODE_PRODUCTS,
    DECODE_STEP_S,
    FORWARD_LAUNCHES,
    HOST_LINK,
    KERNELS_S,
    LAUNCH_S,
    LORA_KERNELS,
    NORMS_ALSO,
    PRODUCTS,
    ROWS_MOVED,
)
from dojang.planning.instances import Instance
from dojang.planning.kv_cache_memory import GIB
from dojang.planning.layout import Layout
from dojang.planning.memory_use import PlannedModel
from dojang.planning.shapes import Shape
from dojang.planning.tokens_per_step import Lengths, Work
from dojang.planning.update_work import GpuWork, Layers, Tokens, backward, forward
from dojang.trainer.config import LoraConfig
from dojang.trainer.memory import checkpointed_layers

__all__ = ["Machine", "generate_s", "optimizer_s", "server_slots", "teacher_s", "update_s"]

_PARTS = 64
"""Number of steps of an integral over the decoded tokens."""
_SERVED = 256
"""Number of sequences that a server decodes at a time."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One device and its speed."""

    instance: Instance
    itemsize: int = 2
    """Bytes of a number in its compute dtype."""
    gpus: int = 1
    """Number of tensor parallel GPUs; their communication is not counted."""

    @property
    def bandwidth(self) -> float:
        gpu = self.instance.gpu
        return self.gpus * gpu.bandwidth * 1e12 * BANDWIDTH if gpu else CPU_BANDWIDTH * self.instance.vcpus

    @property
    def flops(self) -> float:
        """Peak FLOP/s of a GPU; reached FLOP/s of a CPU."""
        gpu = self.instance.gpu
        if gpu:
            return self.gpus * gpu.tflops * 1e12
        return 1e9 * (self.instance.cpu_gflops or CPU_GFLOPS * self.instance.vcpus)

    def decode_s(self, shape: Shape, rows: int, context: float) -> float:
        """Seconds of a decoding step for `rows` sequences with a mean context length."""
        cache = rows * context * shape.kv_numbers * self.itemsize / self.bandwidth
        read = self.itemsize * (shape.multiplied - shape.unused(rows)) / self.bandwidth
        products = 2 * (shape.multiplied - shape.unused()) * rows / self.flops
        if self.instance.gpu is None:
            return CPU_STEP_S * shape.layers + CPU_ROW_S * rows + max(read, products) + cache
        floor = DECODE_STEP_S * shape.layers * (NORMS_ALSO if shape.qk_norm else 1)
        between = ROWS_MOVED * rows * shape.layers * (8 * shape.hidden + 4 * shape.token_mlp) / self.bandwidth
        return floor + max(1.35 * read, products / DECODE_PRODUCTS) + cache + between

    def read_s(self, shape: Shape, tokens: int) -> float:
        """Seconds of prefilling prompts."""
        reached = DECODE_PRODUCTS if self.instance.gpu else 1
        return 2 * (shape.multiplied - shape.unused()) * tokens / (self.flops * reached)


def generate_s(machine: Machine, shape: Shape, lengths: Lengths, sequences: int, asked: int, slots: int) -> float:
    """Seconds to sample all completions of a step on one device. With different lengths, the longest decode last, in
    ever smaller batches."""
    rows = max(1, min(slots, sequences))
    context = lengths.prompt + lengths.answer / 2
    reading = machine.read_s(shape, asked * lengths.prompt)
    if lengths.answer >= lengths.longest_answer:
        whole, rest = divmod(sequences, rows)
        last = machine.decode_s(shape, rest, context) if rest else 0.0
        return reading + lengths.answer * (whole * machine.decode_s(shape, rows, context) + last)
    # Until no sequence waits all slots are full; those that run then have as many tokens left as at their start.
    mean, longest = lengths.answer, lengths.longest_answer
    context = lengths.prompt + mean_square(mean, longest) / (2 * mean)
    full = (sequences / rows - 1) * mean * machine.decode_s(shape, rows, context)
    return reading + full + _last_batch_s(machine, shape, lengths, rows)


def _last_batch_s(machine: Machine, shape: Shape, lengths: Lengths, rows: int) -> float:
    """Seconds to decode sequences that start together, until the longest ends."""
    found, size = 0.0, lengths.longest_answer / _PARTS
    for part in range(_PARTS):
        done = (part + 0.5) * size
        running = rows * running_share(done, lengths.answer, lengths.longest_answer)
        if running < 0.5:  # more likely than not, all have ended
            break
        found += size * machine.decode_s(shape, max(1, round(running)), lengths.prompt + done)
    return found


def server_slots(machine: Machine, shape: Shape, lengths: Lengths) -> int:
    """Number of sequences that fit next to the weights on a server's GPU; 0 if not one."""
    gpu = machine.instance.gpu
    if gpu is None:
        return _SERVED
    free = 0.9 * gpu.memory_gib * GIB - 2 * shape.parameters
    token = shape.kv_numbers * machine.itemsize
    return max(0, min(_SERVED, int(free // (token * (lengths.longest_prompt + lengths.longest_answer)))))


def update_s(machine: Machine, model: PlannedModel, work: Work, role: str, layout: Layout) -> float:
    """Seconds of all gradients of a step, with the passes before: reference log-probs, M2PO's budget. Groups without a
    gradient have a forward pass, for metrics."""
    shape, train = model.shape, model.config.train
    idle = 0.0 if model.trains_all else work.zero_variance.get(role, 0.0)
    trained, others = (_tokens(work, role, share, layout, train.sequence_parallel) for share in (1 - idle, idle))
    if machine.instance.gpu is None:
        return _cpu_update_s(machine, model, trained, others)
    layers = _layers(train.lora)
    # Two all-gathers of half-precision weights, one reduce-scatter of gradients.
    gradients = _exchange_s(shape.parameters * (8 if train.lora is None else 4), layout)
    weights = _exchange_s(2 * shape.parameters, layout)
    gradient = forward(shape, layers, trained) + backward(shape, layers, trained)
    passes = 1.0
    again = _recomputed(model)
    if again:
        gradient += forward(shape, layers, replace(trained, answered=0)) * again
        passes += FORWARD_LAUNCHES * again
    found = _pass_s(machine, shape, gradient, passes, trained, layers, layout, gradients)
    frozen = Layers.FROZEN if train.needs_reference_model else layers
    looks = [(others, layers), (trained, frozen), (others, frozen), (trained, layers)]
    wanted = [True, model.reference, model.reference, model.limit]
    for tokens, read in (look for look, does in zip(looks, wanted, strict=True) if does):
        reading = forward(shape, read, tokens)
        found += _pass_s(machine, shape, reading, FORWARD_LAUNCHES, tokens, read, layout, weights)
    if model.critic:  # its values, and its update; it has no logits
        tokens, whole = replace(trained, answered=0), Layers.TRAINED
        values = forward(shape, whole, tokens)
        found += _pass_s(machine, shape, values, FORWARD_LAUNCHES, tokens, whole, layout, weights)
        gradient = values + backward(shape, whole, tokens) + values * again
        found += _pass_s(machine, shape, gradient, passes, tokens, whole, layout, gradients)
    return found


def teacher_s(machine: Machine, model: PlannedModel, work: Work, role: str, layout: Layout) -> float:
    """Seconds of the teacher's log-probs, if it is a local model or the policy itself: a forward pass over all tokens
    of a step, as many as the student's."""
    shape = model.shape if model.own_teacher else model.teacher
    if shape is None:
        return 0.0
    tokens = _tokens(work, role, 1.0, layout, model.config.train.sequence_parallel)
    if machine.instance.gpu is None:
        return _cpu_s(machine, shape, tokens, _flops(shape, tokens, 2, 4, 2), 1 / 3)
    layers = Layers.FROZEN  # nearly so if it is the policy
    weights = _exchange_s(2 * shape.parameters, layout)
    reading = forward(shape, layers, tokens)
    return _pass_s(machine, shape, reading, FORWARD_LAUNCHES, tokens, layers, layout, weights)


def _recomputed(model: PlannedModel) -> float:
    """Share of the layers with gradient checkpointing."""
    layers = model.shape.layers
    return checkpointed_layers(model.config.train.gradient_checkpointing, layers) / layers


def _layers(lora: LoraConfig | None) -> Layers:
    if lora is None:
        return Layers.TRAINED
    return Layers.QUANTIZED if lora.base_bits == 4 else Layers.ADAPTED


def _tokens(work: Work, role: str, share: float, layout: Layout, sequence_parallel: int) -> Tokens:
    """Tokens of a share of a step's groups, of all ranks; micro-batches of one."""
    data = max(1, layout.ranks // sequence_parallel)
    return Tokens(
        share * work.read(role),
        share * work.answered(role),
        share * work.contexts(role),
        max(work.updates, math.ceil(work.batches(role, share) / data)) if share else 0,
    )


def _pass_s(
    machine: Machine,
    shape: Shape,
    work: GpuWork,
    passes: float,
    tokens: Tokens,
    layers: Layers,
    layout: Layout,
    exchange_s: float,
) -> float:
    """Seconds of a pass over all micro-batches. The CPU launches kernels while the GPU works, so the slower one
    counts; `passes` is how many launches there are, as a share of those of a forward and backward pass. `exchange_s`:
    communication of a micro-batch, which overlaps."""
    computed = work.products / PRODUCTS + work.attention / ATTENTION
    own = (computed / machine.flops + work.moved / machine.bandwidth) / layout.ranks
    kernels = passes * tokens.batches * shape.layers * (LORA_KERNELS if layers.lora else 1)
    return max(max(own, tokens.batches * exchange_s) + kernels * KERNELS_S, kernels * LAUNCH_S)


def _cpu_update_s(machine: Machine, model: PlannedModel, trained: Tokens, others: Tokens) -> float:
    shape, train = model.shape, model.config.train
    again = 1 + _recomputed(model) / 3
    weights = 6 if train.lora is None else 4  # frozen weights have no gradient
    flops, passes = again * _flops(shape, trained, weights, 14, 0) + _flops(shape, trained, 0, 0, 8), again
    if model.critic:
        flops += again * _flops(shape, trained, 8, 18, 0)  # one forward pass for values, one update
        passes += again
    found = _cpu_s(machine, shape, trained, flops, passes)
    for tokens in [others, *([trained, others] if model.reference else []), *([trained] if model.limit else [])]:
        found += _cpu_s(machine, shape, tokens, _flops(shape, tokens, 2, 4, 2), 1 / 3)
    return found


def _flops(shape: Shape, tokens: Tokens, weights: int, attention: int, head: int) -> float:
    """FLOPs: factors of the weights of all layers, of attention scores, and of the output head."""
    return (
        weights * tokens.read * (shape.projected - shape.unused())
        + attention * shape.layers * shape.queries * tokens.contexts
        + head * shape.vocabulary * shape.hidden * tokens.answered
    )


def _cpu_s(machine: Machine, shape: Shape, tokens: Tokens, flops: float, passes: float) -> float:
    """Seconds of passes on a CPU; a forward pass is a third of one."""
    beside = passes * (CPU_TOKEN_S * tokens.read + CPU_BATCH_S * tokens.batches * shape.layers)
    return flops / (machine.flops * CPU_LEARNING) + beside


def _exchange_s(size: int, layout: Layout) -> float:
    """Seconds of FSDP communication of `size` bytes."""
    gpu = layout.gpu
    if layout.ranks == 1 or gpu is None:
        return 0.0
    link = 1e9 * (gpu.link if layout.machines == 1 else min(gpu.link, gpu.network))
    return size * (layout.ranks - 1) / layout.ranks / link


def optimizer_s(machine: Machine, model: PlannedModel, learned: float, layout: Layout) -> float:
    """Seconds of the optimizer step for a number of trained weights, with offloading."""
    moved = 28 * learned / layout.ranks
    away = 16 * learned / layout.ranks / HOST_LINK if "optimizer" in model.config.train.offload else 0.0
    return moved / machine.bandwidth + (away if machine.instance.gpu else 0.0)
