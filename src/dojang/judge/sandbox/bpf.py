"""Assembles a table of system calls into a seccomp BPF filter.

The filter is a binary search over call numbers: the kernel runs a filter once for every number when it is installed,
and a linear one of this length costs more than starting the program.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dojang.judge.sandbox.syscalls import ARCHITECTURES

__all__ = ["ALLOW", "KILL", "SELF", "Clause", "Filter", "Rule", "assemble", "refuse"]

ALLOW = 0x7FFF0000
KILL = 0x80000000  # kills the whole process with SIGSYS
SELF = -1
"""Placeholder for the process's id, filled in when the filter is installed."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000  # x32: a second call table on x86-64 that would bypass the filter
_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x54, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_WORD = 0xFFFFFFFF
_FAR = 0xFF  # longest jump of a comparison

_Instruction = tuple[int, int, int, int]  # operation, value, jump if true, jump if false


def refuse(errno: int) -> int:
    """Action that makes a call fail with this error."""
    return 0x00050000 | errno


@dataclass(frozen=True, slots=True)
class Clause:
    """Action for calls whose masked arguments have these values: (argument, mask, value)."""

    tests: tuple[tuple[int, int, int], ...]
    action: int


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule of one system call: the first matching clause decides."""

    otherwise: int
    clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    """BPF code, and the positions in it that hold the process's id."""

    code: bytes
    self_at: tuple[int, ...]

    def for_process(self, pid: int) -> bytearray:
        code = bytearray(self.code)
        for index in self.self_at:
            struct.pack_into("<I", code, 8 * index + 4, pid)
        return code


def assemble(architecture: str, rules: Mapping[str, Rule], default: int) -> Filter:
    """Assemble a filter for these calls; names the architecture lacks are skipped."""
    numbers = ARCHITECTURES[architecture]
    known = {numbers[name]: rule for name, rule in rules.items() if name in numbers}
    code: list[_Instruction] = [
        (_LOAD, _ARCH_AT, 0, 0),
        (_JUMP_EQUAL, _AUDIT_ARCH[architecture], 1, 0),
        (_RETURN, KILL, 0, 0),
        (_LOAD, _NUMBER_AT, 0, 0),
    ]
    if architecture == "x86_64":
        code += [(_JUMP_AT_LEAST, _X32_BIT, 0, 1), (_RETURN, KILL, 0, 0)]
    code += _search(_segments(known, Rule(default)))
    packed = [struct.pack("<HBBI", op, yes, no, 0 if value == SELF else value) for op, value, yes, no in code]
    return Filter(b"".join(packed), tuple(index for index, line in enumerate(code) if line[1] == SELF))


def _search(segments: Sequence[tuple[int, Rule]]) -> list[_Instruction]:
    """Binary search for the segment of a call number, then its rule."""
    if len(segments) == 1:
        return _decide(segments[0][1])
    middle = len(segments) // 2
    below, above = _search(segments[:middle]), _search(segments[middle:])
    first = segments[middle][0]
    if len(below) <= _FAR:
        return [(_JUMP_AT_LEAST, first, len(below), 0), *below, *above]
    return [(_JUMP_AT_LEAST, first, 0, 1), (_JUMP, len(below), 0, 0), *below, *above]


def _decide(rule: Rule) -> list[_Instruction]:
    code: list[_Instruction] = []
    for clause in rule.clauses:
        words = [word for test in clause.tests for word in _words(test)]
        for done, (offset, mask, value) in enumerate(words):
            # Skip the rest of this clause: three instructions per word, and its return.
            skip = 3 * (len(words) - done - 1) + 1
            code += [(_LOAD, offset, 0, 0), (_AND, mask, 0, 0), (_JUMP_EQUAL, value, 0, skip)]
        code.append((_RETURN, clause.action, 0, 0))
    return [*code, (_RETURN, rule.otherwise, 0, 0)]


def _words(test: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Split a test of a 64-bit argument into tests of its two halves."""
    argument, mask, value = test
    low = (_ARGUMENTS_AT + 8 * argument, mask & _WORD, value if value == SELF else value & _WORD)
    high = (_ARGUMENTS_AT + 8 * argument + 4, mask >> 32, 0 if value == SELF else value >> 32)
    return [word for word in (low, high) if word[1]]


def _segments(rules: Mapping[int, Rule], default: Rule) -> list[tuple[int, Rule]]:
    """Ranges of numbers that share a rule, as (first number, rule)."""
    segments: list[tuple[int, Rule]] = []
    for number in range(max(rules, default=0) + 2):
        rule = rules.get(number, default)
        if not segments or segments[-1][1] != rule:
            segments.append((number, rule))
    return segments
