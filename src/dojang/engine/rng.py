"""Random numbers by name: the stream of a sample depends on (seed, ordinal, index) and on nothing before it.

Philox is counter-based, so any stream can be opened at any time; numpy promises its raw bits never change.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["uniforms"]


def uniforms(seed: int, ordinal: int, index: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) of sample `index` of draw `ordinal`; one per token position."""
    philox = np.random.Philox(key=[seed, 0], counter=[0, index, ordinal, 0])
    raw: NDArray[np.uint64] = philox.random_raw(count)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
