"""Read-only numpy arrays of records (types.py)."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # numpy is imported late: the records are read by code that starts fast
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32] | NDArray[np.float64]

__all__ = ["float_array", "read_only"]


def float_array(values: "Sequence[float] | Floats") -> "Floats":
    """Read-only array of numbers: float32 if that loses nothing, as with log-probs of float32 logits, else float64."""
    import numpy as np

    if not len(values):
        return _no_floats()
    found = np.asarray(values)
    if found.dtype != np.float32:
        found = found.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):  # such a number stays float64; damaged bytes may be NaN
            narrow = found.astype(np.float32)
        found = narrow if np.array_equal(narrow, found, equal_nan=True) else found
    return read_only(found)


@cache
def _no_floats() -> "Floats":
    """The same empty array for all, which pickle writes once."""
    import numpy as np

    return read_only(np.zeros(0, dtype=np.float32))


def read_only(array: "NDArray[Any]") -> "NDArray[Any]":
    """View of the array that cannot be written to."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
