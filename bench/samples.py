"""Samples between processes: bytes a token and the time to pickle and unpickle, as arrays and as lists of numbers."""

import pickle
import statistics
import time
from collections.abc import Callable
from random import Random

import numpy as np

from dojang.types import Completion, Outcome, Sample, Verdict
from machine import Row, arguments, report

SAMPLES, TOKENS, ROUNDS = 64, 2048, 7
STREAMS = ("tokens", "mask", "logprobs")


def drawn(random: Random) -> Sample:
    """A sample with random tokens and float32 log-probs."""
    tokens = tuple(random.randrange(150_000) for _ in range(TOKENS))
    logprobs = tuple(float(np.float32(-random.expovariate(1))) for _ in tokens)
    return Sample.of(tokens[:256], Completion(tokens, logprobs, "", "stop", 0), Verdict(Outcome.WRONG, 0.0))


def seconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    options = arguments((__doc__ or "").partition("\n")[0]).parse_args()
    random = Random(0)
    samples = [drawn(random) for _ in range(SAMPLES)]
    arrays = [[getattr(sample, name) for name in STREAMS] for sample in samples]
    lists = [[stream.tolist() for stream in streams] for streams in arrays]
    count = sum(len(sample.tokens) for sample in samples)
    in_memory = sum(stream.nbytes for streams in arrays for stream in streams) / count
    # A list element is a pointer of 8 bytes; ints and floats are objects of 28 and 24 bytes, booleans are shared.
    as_lists = 8 + 28 + 8 + 8 + 24
    mine = seconds(lambda: pickle.loads(pickle.dumps(samples, 5)))
    plain = seconds(lambda: pickle.loads(pickle.dumps(lists, 5)))
    case = f"{SAMPLES} samples of {TOKENS} tokens"
    rows = [
        Row("memory of a token", "arrays", "lists", in_memory, as_lists, "bytes", as_lists / in_memory),
        Row(f"pickle and unpickle {case}", "arrays", "lists", mine, plain, "s", plain / mine),
    ]
    report("samples", rows, options.json)


if __name__ == "__main__":
    main()
