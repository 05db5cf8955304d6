"""Size and speed of groups as bytes (checkpoints, journal, deliveries of rollout workers), beside JSON.

Random groups of 16 samples with log-probs of float32, as the engines give them. MB are those of tokens, masks and
log-probs in memory: 9 bytes a token.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from operator import methodcaller

import numpy as np

from dojang.loop.group_codec import decode, encode
from dojang.types import Group, Message, Outcome, Problem, Sample, Span, Verdict
from machine import Row, arguments, report

PROBLEM = Problem("sums/1", "sums", (Message("user", "1+1?"),), "2")
SAMPLES, PROMPT, ROUNDS = 16, 100, 5


def group(tokens: int) -> Group:
    """A group whose completions have this many tokens each."""
    random = np.random.default_rng(0)

    def sample(index: int) -> Sample:
        size = PROMPT + tokens
        mask = np.arange(size) >= PROMPT
        return Sample(
            tokens=random.integers(0, 150_000, size, dtype=np.int32),
            mask=mask,
            logprobs=-(random.standard_exponential(size) * mask).astype(np.float32),
            text="word " * tokens,
            finish="stop",
            version=3,
            verdict=Verdict(Outcome.ACCEPTED, 1.0, parts={"accuracy": 1.0}),
            index=index,
            spans=(Span(3, PROMPT, size),),
        )

    return Group(PROBLEM, 7, tuple(map(sample, range(SAMPLES))))


def to_json(group: Group) -> bytes:
    rows = [asdict(each) for each in group.samples]
    return json.dumps({"prompt_index": group.prompt_index, "samples": rows}, default=methodcaller("tolist")).encode()


def from_json(data: bytes) -> Group:
    found = json.loads(data)
    samples = []
    for row in found["samples"]:
        verdict = Verdict(**{**row["verdict"], "outcome": Outcome(row["verdict"]["outcome"])})
        spans = tuple(Span(**each) for each in row["spans"])
        samples.append(Sample(**{**row, "verdict": verdict, "spans": spans}))
    return Group(PROBLEM, found["prompt_index"], tuple(samples))


def seconds(work: Callable[[], object]) -> float:
    def once() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    return statistics.median(once() for _ in range(ROUNDS))


def rows(tokens: int) -> list[Row]:
    whole = group(tokens)
    case, count = f"{tokens} tokens", SAMPLES * (PROMPT + tokens)
    ours, theirs = encode(whole), to_json(whole)
    assert decode(ours, lambda _: PROBLEM) == from_json(theirs) == whole
    text = sum(len(each.text.encode()) for each in whole.samples)
    sizes = [(len(data) - text) / count for data in (ours, theirs)]
    found = [Row(case, "size", "JSON", *sizes, "bytes/token", sizes[1] / sizes[0], "without the text")]
    for name, mine, other in (
        ("encode", lambda: encode(whole), lambda: to_json(whole)),
        ("decode", lambda: decode(ours, lambda _: PROBLEM), lambda: from_json(theirs)),
    ):
        speeds = [9 * count / 1e6 / seconds(work) for work in (mine, other)]
        found.append(Row(case, name, "JSON", *speeds, "MB/s", speeds[0] / speeds[1]))
    return found


def main() -> None:
    options = arguments((__doc__ or "").partition("\n")[0]).parse_args()
    report("group_codec", [row for tokens in (100, 1000, 8000) for row in rows(tokens)], options.json)


if __name__ == "__main__":
    main()
