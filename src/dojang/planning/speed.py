"""Seconds of decoding, updates and optimizer steps: memory and FLOP bounds with measured efficiency (efficiency.py)."""

import math
from dataclasses import dataclass

from dojang.planning.efficiency import (
    ACTIVATIONS_MOVED,
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
    HOST_LINK,
    LAUNCH_S,
    LEARN_PRODUCTS,
    LEARN_STEP_S,
    NORMS_ALSO,
    ROWS_MOVED,
    SCORES_MOVED,
)
from dojang.planning.instances import Instance
from dojang.planning.kv_cache_memory import GIB
from dojang.planning.layout import Layout
from dojang.planning.memory_use import PlannedModel
from dojang.planning.shapes import Shape
from dojang.planning.tokens_per_step import Lengths, Work
from dojang.trainer.memory import checkpointed_layers, layer_bytes

__all__ = ["Machine", "generate_s", "optimizer_s", "server_slots", "teacher_s", "update_s"]

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
        read = self.itemsize * (shape.parameters - shape.unused(rows)) / self.bandwidth
        products = 2 * (shape.parameters - shape.unused()) * rows / self.flops
        if self.instance.gpu is None:
            return CPU_STEP_S * shape.layers + CPU_ROW_S * rows + max(read, products) + cache
        floor = DECODE_STEP_S * shape.layers * (NORMS_ALSO if shape.qk_norm else 1)
        between = ROWS_MOVED * rows * shape.layers * (8 * shape.hidden + 4 * shape.token_mlp) / self.bandwidth
        return floor + max(1.35 * read, products / DECODE_PRODUCTS) + cache + between

    def read_s(self, shape: Shape, tokens: int) -> float:
        """Seconds of prefilling prompts."""
        reached = DECODE_PRODUCTS if self.instance.gpu else 1
        return 2 * (shape.parameters - shape.unused()) * tokens / (self.flops * reached)


def generate_s(machine: Machine, shape: Shape, lengths: Lengths, sequences: int, asked: int, slots: int) -> float:
    """Seconds to sample all completions of a step on one device. With different lengths, the longest decode last, in
    small batches."""
    rows = max(1, min(slots, sequences))
    context = lengths.prompt + lengths.answer / 2
    reading = machine.read_s(shape, asked * lengths.prompt)
    if lengths.answer >= lengths.longest_answer:
        whole, rest = divmod(sequences, rows)
        last = machine.decode_s(shape, rest, context) if rest else 0.0
        return reading + lengths.answer * (whole * machine.decode_s(shape, rows, context) + last)
    longest = min(lengths.longest_answer, lengths.answer * (1 + math.log(rows)))
    full = sequences * lengths.answer / rows * machine.decode_s(shape, rows, context)
    return reading + full + (longest - lengths.answer) * machine.decode_s(shape, max(1, rows // 4), longest)


def server_slots(machine: Machine, shape: Shape, lengths: Lengths) -> int:
    """Number of sequences that fit next to the weights on a server's GPU; 0 if not one."""
    gpu = machine.instance.gpu
    if gpu is None:
        return _SERVED
    free = 0.9 * gpu.memory_gib * GIB - 2 * shape.parameters
    token = shape.kv_numbers * machine.itemsize
    return max(0, min(_SERVED, int(free // (token * (lengths.longest_prompt + lengths.longest_answer)))))


def update_s(machine: Machine, model: PlannedModel, work: Work, role: str, layout: Layout) -> float:
    """Seconds of all gradients of a step, with the passes before: reference log-probs, M2PO's budget."""
    shape, train = model.shape, model.config.train
    again = 1 + checkpointed_layers(train.gradient_checkpointing, shape.layers) / shape.layers / 3
    weights = 6 if train.lora is None else 4  # frozen weights have no gradient
    products, attention, head = _operations(shape, work, role)
    flops = again * (weights * products + 14 * attention) + 8 * head
    looks = int(model.reference) + int(model.limit)
    flops += looks * (2 * products + 4 * attention + 2 * head)
    if model.critic:
        flops += again * (8 * products + 18 * attention)  # one forward pass for values, one update
    passes = again * (2 if model.critic else 1) + looks / 3
    update = _Passes(
        shape,
        flops,
        passes,
        activations=layer_bytes(shape, "half", narrow=False, adapted=train.lora is not None),
        scores=SCORES_MOVED * work.answered(role) * shape.vocabulary * 4,
        # Two all-gathers of half-precision weights, one reduce-scatter of gradients.
        exchanged=shape.parameters * (8 if train.lora is None else 4),
    )
    return _passes_s(machine, update, model, work, role, layout)


def teacher_s(machine: Machine, model: PlannedModel, work: Work, role: str, layout: Layout) -> float:
    """Seconds of the teacher's log-probs, if it is a local model or the policy itself: a forward pass over all tokens
    of a step, as many as the student's."""
    shape = model.shape if model.own_teacher else model.teacher
    if shape is None:
        return 0.0
    products, attention, head = _operations(shape, work, role)
    flops = 2 * products + 4 * attention + 2 * head
    activations = layer_bytes(shape, "half", narrow=False, adapted=False)
    forward = _Passes(shape, flops, 1 / 3, activations, scores=0, exchanged=2 * shape.parameters)
    return _passes_s(machine, forward, model, work, role, layout)


def _operations(shape: Shape, work: Work, role: str) -> tuple[int, int, int]:
    """Multiplications of a forward pass over a step: of weights, of attention scores, of the output head."""
    return (
        work.read(role) * (shape.projected - shape.unused()),
        shape.layers * shape.queries * work.contexts(role),
        shape.vocabulary * shape.hidden * work.answered(role),
    )


@dataclass(frozen=True, slots=True)
class _Passes:
    """Passes of a model over the tokens of a step."""

    shape: Shape
    flops: float
    number: float
    """Forward and backward passes; a forward pass is a third of one."""
    activations: int
    """Bytes per token and layer."""
    scores: float
    """Bytes moved for logits."""
    exchanged: int
    """Bytes that FSDP exchanges per micro-batch."""


def _passes_s(machine: Machine, passes: _Passes, model: PlannedModel, work: Work, role: str, layout: Layout) -> float:
    tokens, shape, flops = work.read(role), passes.shape, passes.flops
    data = max(1, layout.ranks // model.config.train.sequence_parallel)
    batches = max(work.updates, math.ceil(work.batches(role) / data))
    if machine.instance.gpu is None:
        beside = passes.number * (CPU_TOKEN_S * tokens + CPU_BATCH_S * batches * shape.layers)
        return flops / (machine.flops * CPU_LEARNING) + beside
    moved = passes.number * ACTIVATIONS_MOVED * tokens * shape.layers * passes.activations + passes.scores
    own = (flops / (machine.flops * LEARN_PRODUCTS) + moved / machine.bandwidth) / layout.ranks
    kernels = passes.number * batches * shape.layers
    return max(max(own, batches * _exchange_s(passes.exchanged, layout)) + kernels * LEARN_STEP_S, kernels * LAUNCH_S)


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
