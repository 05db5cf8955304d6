"""Measured efficiency of machines: all constants of time, with their sources.

GPU: one H200, torch 2.11. Decoding was fitted to the 57 steps of docs/performance.md (three models, 1 to 2048
sequences, contexts of 256 to 1024), within 12%, 5.5% on average; KERNELS_S and LAUNCH_S to the six updates of
docs/training.md, within 8%. docs/planning.md has what they predict.
Other GPUs are assumed to reach the same fractions of their vendors' peaks: that has not been measured.

CPU: two cores of a Neoverse N1, `bench/plan.py`.
"""

from typing import Final

__all__ = [
    "ANSWER_CORE_S",
    "ATTENTION",
    "BANDWIDTH",
    "CPU_BANDWIDTH",
    "CPU_BATCH_S",
    "CPU_GFLOPS",
    "CPU_LEARNING",
    "CPU_ROW_S",
    "CPU_SAMPLE_S",
    "CPU_STEP_S",
    "CPU_TOKEN_S",
    "DECODE_PRODUCTS",
    "DECODE_STEP_S",
    "DISK",
    "FORWARD_LAUNCHES",
    "GRADE_S",
    "HOST_LINK",
    "KERNELS_S",
    "LAUNCH_S",
    "LORA_KERNELS",
    "NORMS_ALSO",
    "PRODUCTS",
    "PROGRAM_CORE_S",
    "RECORD_S",
    "ROWS_MOVED",
    "SAMPLE_S",
]

BANDWIDTH: Final = 4.25 / 4.8
"""Fraction of the peak memory bandwidth that a plain copy reaches."""
DECODE_PRODUCTS: Final = 790 / 989 / 1.35
"""Fraction of peak FLOPs of matmuls in a decoding step with many sequences. With few, a step takes 1.35 times the time
of reading the weights."""
DECODE_STEP_S: Final = 25.5e-6
"""Minimum seconds per layer, for its kernels."""
NORMS_ALSO: Final = 1.35
"""Factor of that minimum for models with query and key norms."""
ROWS_MOVED: Final = 5.6
"""Number of times a decoding step moves the activations between a layer's matmuls: 8 bytes per hidden number of a token
and 4 per MLP number."""
PRODUCTS: Final = 790 / 989
"""Fraction of peak FLOPs that a plain matrix product reaches."""
ATTENTION: Final = 0.4
"""Fraction of peak FLOPs of FlashAttention 2, forward and backward: about 400 TFLOP/s on an H100. Published, not
measured here."""
KERNELS_S: Final = 2.1e-3
"""Seconds per layer and micro-batch in which the GPU is not busy: starts and ends of some 200 kernels, forward and
backward."""
LAUNCH_S: Final = 3.9e-3
"""Seconds per layer and micro-batch to launch kernels from Python, forward and backward: if the GPU is faster, it
waits."""
FORWARD_LAUNCHES: Final = 1 / 3
"""Share of a forward pass in both."""
LORA_KERNELS: Final = 1.5
"""Factor of both for layers with adapters: two small products and their sums and conversions beside each projection.
From the time to launch such layers on a CPU (1.45)."""
HOST_LINK: Final = 8e9
"""Bytes per second between a GPU and unpinned host memory. Not measured."""
DISK: Final = 1e9
"""Bytes per second to and from the weights directory. Not measured on a GPU."""

CPU_GFLOPS: Final = 35.0
"""Default GFLOP/s of a core in float32: from rollouts and updates of the 20M model on a Neoverse N1
(docs/performance.md, docs/training.md)."""
CPU_BANDWIDTH: Final = 5e9
"""Bytes per second of memory bandwidth per core. Not measured."""
CPU_LEARNING: Final = 0.95
"""Speed of an update relative to the matmuls of a decoding step."""
CPU_BATCH_S: Final = 15e-3
"""Seconds per layer and micro-batch for Python and small operations, forward and backward."""
CPU_STEP_S: Final = 0.8e-3
"""Minimum seconds per layer of a decoding step."""
CPU_ROW_S: Final = 60e-6
"""Seconds per sequence of a decoding step: sampling its token and bookkeeping."""
CPU_TOKEN_S: Final = 20e-6
"""Seconds per token of an update, besides matmuls."""

SAMPLE_S: Final = 0.2e-3
"""Seconds per sample of a step besides the GPU's work: requests, detokenizing, scheduling. From the rollouts of
docs/performance.md, less their decoding steps."""
GRADE_S: Final = 0.35e-3
"""Seconds per sample for grading without programs and building the sample, in the thread that all samples share. From
one run (docs/planning.md)."""
RECORD_S: Final = 0.4e-3
"""Seconds per sample of an update besides the GPU's work: packing, advantages, metrics, records. From the same run."""
CPU_SAMPLE_S: Final = 1e-3
"""The same on a Neoverse N1, grading and recording included: the quickstart."""
PROGRAM_CORE_S: Final = {"cpp17": 0.88, "python3": 0.13}
"""Core seconds to judge a program on 20 tests, with compilation: `dojang bench judge` on two cores of a Neoverse N1
(docs/results)."""
ANSWER_CORE_S: Final = {"maths": 0.01, "reasoning_gym": 0.01}
"""Core seconds to grade an answer. Only measured on a Neoverse N1."""
