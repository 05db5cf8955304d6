"""What machines really reach, and where that was measured. All constants of time are here.

GPU: one H200, torch 2.11. Decoding was fitted to the 57 steps of docs/performance.md (three models, 1 to 2048
sequences, contexts of 256 to 1024), which it meets within 12%, 5.5% on average; learning to the six updates of
docs/training.md, which it meets within 5%. Other GPUs are taken to reach the same shares of their vendors' figures:
that has not been measured.

CPU: two cores of a Neoverse N1, `bench/plan.py`.
"""

from typing import Final

__all__ = [
    "ACTIVATIONS_MOVED",
    "ANSWER_CORE_S",
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
    "HOST_LINK",
    "LAUNCH_S",
    "LEARN_PRODUCTS",
    "LEARN_STEP_S",
    "NORMS_ALSO",
    "PROGRAM_CORE_S",
    "ROWS_MOVED",
    "SAMPLE_S",
    "SCORES_MOVED",
]

BANDWIDTH: Final = 4.25 / 4.8
"""Of the memory's peak, for a plain copy."""
DECODE_PRODUCTS: Final = 790 / 989 / 1.35
"""Of the peak, for the products of a decoding step with many sequences. With few, weights take 1.35 times what reading
them takes."""
DECODE_STEP_S: Final = 25.5e-6
"""Seconds a layer, for its kernels, however few sequences there are."""
NORMS_ALSO: Final = 1.35
"""Times that, where queries and keys have norms."""
ROWS_MOVED: Final = 5.6
"""How often a decoding step moves what is between the products of a layer, 8 bytes for each number of a token and 4 for
each of its gated layer."""
LEARN_PRODUCTS: Final = 0.546
"""Of the peak, for the products of an update."""
ACTIVATIONS_MOVED: Final = 23.4
"""How often an update moves what a layer keeps for its gradient."""
SCORES_MOVED: Final = 20.2
"""How often an update moves the scores of all words, in single precision."""
LEARN_STEP_S: Final = 1.71e-3
"""Seconds a layer and micro-batch, for Python and kernels, in both directions."""
LAUNCH_S: Final = 3.3e-3
"""Seconds a layer and micro-batch that it takes to launch its kernels, in both directions, where they are so short that
the GPU waits: micro-batches of 2048 and 4096 tokens took 2.8 to 4.0 ms."""
HOST_LINK: Final = 8e9
"""Bytes a second between a GPU and memory that is not pinned. Not measured."""
DISK: Final = 1e9
"""Bytes a second into the folder where weights are handed over, and out of it. Not measured on a GPU."""

CPU_GFLOPS: Final = 35.0
"""Of a core in single precision, where it was not measured: rollouts and updates of the 20M model on a Neoverse N1
(docs/performance.md, docs/training.md)."""
CPU_BANDWIDTH: Final = 5e9
"""Bytes a second from a processor's memory, for each of its cores. Not measured."""
CPU_LEARNING: Final = 0.95
"""Of what the products of a decoding step reach, for an update, whose products are larger but not all of it."""
CPU_BATCH_S: Final = 15e-3
"""Seconds a layer and micro-batch, for Python and small operations, in both directions."""
CPU_STEP_S: Final = 0.8e-3
"""Seconds a layer of a decoding step, however few sequences there are."""
CPU_ROW_S: Final = 60e-6
"""Seconds for each sequence of a decoding step: drawing its token and looking after it."""
CPU_TOKEN_S: Final = 20e-6
"""Seconds for each token of an update, beside products."""

SAMPLE_S: Final = 0.2e-3
"""Seconds for each sample of a step, beside a GPU: asking, texts, scheduling. What the rollouts of docs/performance.md
take beyond their decoding steps."""
CPU_SAMPLE_S: Final = 1e-3
"""The same on a Neoverse N1, grading and recording included: the quickstart."""
PROGRAM_CORE_S: Final = {"cpp17": 0.88, "python3": 0.13}
"""Seconds of a core to judge a program on 20 tests, compiling included: `dojang bench judge` on two cores of a Neoverse
N1 (docs/results)."""
ANSWER_CORE_S: Final = {"maths": 0.01, "reasoning_gym": 0.01}
"""Seconds of a core to compare an answer. Not measured on other cores than a Neoverse N1's."""
