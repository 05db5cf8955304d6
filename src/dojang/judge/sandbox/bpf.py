"""From a table of system calls to a seccomp filter.

The filter searches the call number like a sorted list: the kernel walks a filter once for every number when it is
installed, and a linear one of this length costs more than starting the program.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dojang.judge.sandbox.syscalls import ARCHITECTURES

__all__ = ["ALLOW", "KILL", "SELF", "Clause", "Filter", "Rule", "assemble", "refuse"]

ALLOW = 0x7FFF0000
KILL = 0x80000000  # the whole process, by SIGSYS
SELF = -1
"""A value that stands for the process's own id, filled in when the filter is installed."""

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000  # a second table of calls on x86-64, by which a filter could be passed
_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _AND, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x54, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_WORD = 0xFFFFFFFF


def refuse(errno: int) -> int:
    """The action that makes a call fail with this error."""
    return 0x00050000 | errno


@dataclass(frozen=True, slots=True)
class Clause:
    """An action for calls whose arguments, masked, have these values: (argument, mask, value)."""

    tests: tuple[tuple[int, int, int], ...]
    action: int


@dataclass(frozen=True, slots=True)
class Rule:
    """What is done about one call: the first clause that fits decides."""

    otherwise: int
    clauses: tuple[Clause, ...] = ()


@dataclass(frozen=True, slots=True)
class Filter:
    """Machine code for the kernel, and where in it the process's own id belongs."""

    code: bytes
    self_at: tuple[int, ...]

    def for_process(self, pid: int) -> bytearray:
        code = bytearray(self.code)
        for index in self.self_at:
            struct.pack_into("<I", code, 8 * index + 4, pid)
        return code


def assemble(architecture: str, rules: Mapping[str, Rule], default: int) -> Filter:
    """A filter for these calls; names the architecture does not have are passed over."""
    numbers = ARCHITECTURES[architecture]
    return _Assembler().build(
        _AUDIT_ARCH[architecture],
        {numbers[name]: rule for name, rule in rules.items() if name in numbers},
        Rule(default),
        x32=architecture == "x86_64",
    )


class _Assembler:
    def __init__(self) -> None:
        self._code: list[tuple[int, int, int, int]] = []
        self._self_at: list[int] = []

    def build(self, audit_arch: int, rules: Mapping[int, Rule], default: Rule, *, x32: bool) -> Filter:
        self._emit(_LOAD, _ARCH_AT)
        self._emit(_JUMP_EQUAL, audit_arch, 1, 0)
        self._emit(_RETURN, KILL)
        self._emit(_LOAD, _NUMBER_AT)
        if x32:
            self._emit(_JUMP_AT_LEAST, _X32_BIT, 0, 1)
            self._emit(_RETURN, KILL)
        self._search(_segments(rules, default))
        code = b"".join(struct.pack("<HBBI", op, yes, no, value) for op, value, yes, no in self._code)
        return Filter(code, tuple(self._self_at))

    def _emit(self, op: int, value: int, yes: int = 0, no: int = 0) -> None:
        self._code.append((op, value, yes, no))

    def _search(self, segments: Sequence[tuple[int, Rule]]) -> None:
        if len(segments) == 1:
            self._decide(segments[0][1])
            return
        middle = len(segments) // 2
        self._emit(_JUMP_AT_LEAST, segments[middle][0], 0, 1)
        hole = len(self._code)
        self._emit(_JUMP, 0)
        self._search(segments[:middle])
        self._code[hole] = (_JUMP, len(self._code) - hole - 1, 0, 0)
        self._search(segments[middle:])

    def _decide(self, rule: Rule) -> None:
        for clause in rule.clauses:
            words = [word for test in clause.tests for word in _words(test)]
            for done, (offset, mask, value) in enumerate(words):
                self._emit(_LOAD, offset)
                self._emit(_AND, mask)
                # Past the rest of this clause: three instructions a word, and its return.
                skip = 3 * (len(words) - done - 1) + 1
                if value == SELF:
                    self._self_at.append(len(self._code))
                self._emit(_JUMP_EQUAL, 0 if value == SELF else value, 0, skip)
            self._emit(_RETURN, clause.action)
        self._emit(_RETURN, rule.otherwise)


def _words(test: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """A test of a 64-bit argument as tests of its two halves."""
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
