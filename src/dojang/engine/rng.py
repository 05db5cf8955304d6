"""Counter-based random numbers: a sample's stream depends only on (seed, prompt_index, index).

Philox is counter-based, so any stream can be opened at any time; numpy guarantees that its raw bits never change.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["uniforms"]


def uniforms(seed: int, prompt_index: int, index: int, count: int) -> NDArray[np.float64]:
    """Return `count` numbers in [0, 1) for sample `index` of prompt `prompt_index`, one per token position."""
    philox = np.random.Philox(key=[seed, 0], counter=[0, index, prompt_index, 0])
    raw: NDArray[np.uint64] = philox.random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
