"""CodeContests problems in veRL's row layout as test suites, and programs that know the answers.

The data are not part of the repository; this module only reads them. A program that knows the answers does not solve
problems. It shows that inputs reach a program unchanged and that its outputs are recognised.
"""

import binascii
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dojang.programs import IoTest, Limits

SMALLEST = 3
_KINDS = ("public_tests", "private_tests")


@dataclass(frozen=True, slots=True)
class Contest:
    """One problem."""

    name: str
    tests: tuple[IoTest, ...]
    """Tests, public ones first."""
    limits: Limits
    answers: Mapping[str, str]
    """Input -> output. If an input occurs again with another output, the first one counts."""

    @property
    def few(self) -> tuple[IoTest, ...]:
        """The smallest three tests and the largest."""
        by_size = sorted(self.tests, key=lambda test: len(test.input) + len(test.output))
        return tuple(by_size[:SMALLEST] + by_size[SMALLEST:][-1:])

    def agrees(self, test: IoTest) -> bool:
        """Whether the test expects this problem's answer to its input."""
        return self.answers[test.input].split() == test.output.split()


def read(folder: Path) -> list[Contest]:
    """All problems of the training and test rows."""
    return [
        _contest(row) for split in ("train", "test") for row in pq.read_table(folder / f"{split}.parquet").to_pylist()
    ]


def _contest(row: Mapping[str, Any]) -> Contest:
    assert (row["data_source"], row["reward_model"]["style"]) == ("code_contests", "rule")
    truth = row["reward_model"]["ground_truth"]
    pairs = [pair for kind in _KINDS for pair in zip(truth[kind]["input"], truth[kind]["output"], strict=True)]
    return Contest(truth["name"], tuple(IoTest(*pair) for pair in pairs), _limits(truth), dict(reversed(pairs)))


def _limits(truth: Mapping[str, Any]) -> Limits:
    seconds = truth["time_limit"]["seconds"] + truth["time_limit"]["nanos"] / 1e9
    # Codeforces means 256 * 2**20 bytes by 256 MB; CodeContests counted a megabyte as a million bytes.
    megabytes, rest = divmod(truth["memory_limit_bytes"], 10**6)
    assert rest == 0, truth["name"]
    return Limits(cpu_s=seconds, memory_mb=megabytes)


# ---- programs that know the answers --------------------------------------------------------------------------

_PYTHON = """\
import binascii, sys, zlib
ANSWERS = {answers!r}
given = sys.stdin.buffer.read()
sys.stdout.buffer.write(zlib.decompress(binascii.a2b_base64(ANSWERS[len(given), zlib.crc32(given)])))
"""

_CPP = """\
#include <bits/stdc++.h>
int main() {{
    const std::map<std::uint64_t, std::string_view> answers = {{
{answers}
    }};
    std::uint64_t given = 14695981039346656037u;  // FNV-1a
    for (int byte; (byte = std::getchar()) != EOF;) given = (given ^ byte) * 1099511628211u;
    const auto answer = answers.at(given);
    std::fwrite(answer.data(), 1, answer.size(), stdout);
}}
"""


def python_by_heart(contest: Contest, tests: Iterable[IoTest]) -> str:
    """Build a program with compressed answers: those of one problem may be megabytes. Its imports load fast."""
    answers = {
        (len(given), zlib.crc32(given)): binascii.b2a_base64(zlib.compress(contest.answers[test.input].encode()))
        for test in tests
        for given in (test.input.encode(),)
    }
    return _PYTHON.format(answers=answers)


def cpp_by_heart(contest: Contest, tests: Iterable[IoTest]) -> str:
    answers = {_fnv(test.input.encode()): contest.answers[test.input].encode() for test in tests}
    lines = (f'{{{given}u, {{"{_escaped(answer)}", {len(answer)}}}}},' for given, answer in answers.items())
    return _CPP.format(answers="\n".join(lines))


def _fnv(data: bytes) -> int:
    state = 14695981039346656037
    for byte in data:
        state = (state ^ byte) * 1099511628211 % 2**64
    return state


def _escaped(data: bytes) -> str:
    return "".join(f"\\{byte:03o}" for byte in data)
