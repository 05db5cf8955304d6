"""The corpus: small programs, hostile and honest, each with its expected outcome in its first lines.

    // tries: read the password file through an include
    // expect: compile_error

A header is the run of comment lines at the top of a file, one `key: value` each:

    tries      what the program does, in a few words
    expect     accepted outcomes, separated by |; runtime_error(SIGSYS) also names the signal
    hides      optional, repeatable: text that must not appear in the judgement
    arch       optional: the only architecture it runs on (x86_64 or aarch64)
    language   optional: cpp17 (the default for .cpp), cpp20, python3
    limits     optional: fields of Limits, as in memory_mb=64 cpu_s=0.5
    checker    optional: the checker's name
    input      optional, repeatable: a JSON string that replaces the common problem's inputs...
    output     ...each followed by its expected output
    function   in calls/: the function called `candidate`; each begins a test
    code       in calls/, repeatable: the lines of the test's code
    expand     optional, repeatable: NAME = "text" x 1000; NAME is replaced by that text in the program below

The common problem: read two integers, print their sum. This module only reads programs; it does not judge.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from dojang.programs import CallTest, Checker, CheckerName, IoTest, Judgement, Limits, TestSuite
from dojang.types import Outcome

PROGRAMS = Path(__file__).parent / "programs"
FOLDERS = ("compile", "hostile", "honest", "python", "calls")
ARCHES = ("x86_64", "aarch64")
LANGUAGES = {".cpp": ("cpp17", "cpp20"), ".py": ("python3",)}
"""Languages by suffix, the default first."""
SUM = (IoTest("1 2\n", "3\n"), IoTest("20 22\n", "42\n"), IoTest("-5 5\n", "0\n"))

_COMMENT = {".cpp": "//", ".py": "#"}
_ONCE = {"tries", "expect", "arch", "language", "limits", "checker"}
_REPEATED = {"hides", "input", "output", "function", "code", "expand"}
_IMPOSSIBLE = {Outcome.JUDGE_ERROR}
"""Never a program's fault, so never expected."""

Lines = Sequence[tuple[str, str]]


class MalformedHeader(ValueError):
    """The header of a program is invalid."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One accepted outcome."""

    outcome: Outcome
    signal: str | None = None
    """Signal that must have ended a test with that outcome, if given."""

    def __str__(self) -> str:
        return f"{self.outcome}({self.signal})" if self.signal else str(self.outcome)

    def met_by(self, judgement: Judgement) -> bool:
        if judgement.outcome is not self.outcome:
            return False
        ended = (result.signal for result in judgement.results if result.outcome is self.outcome)
        return self.signal is None or self.signal in ended


@dataclass(frozen=True, slots=True)
class Entry:
    """A program and its expected outcomes."""

    path: Path
    name: str
    """Folder and file without the suffix: hostile/fork_bomb."""
    language: str
    source: str
    tries: str
    expect: tuple[Expected, ...]
    hides: tuple[str, ...]
    arch: str | None
    """None means any architecture."""
    test_suite: TestSuite

    def problem_with(self, judgement: Judgement) -> str | None:
        """Describe the difference from the expectation; None if there is none."""
        if not any(expected.met_by(judgement) for expected in self.expect):
            wanted = " or ".join(map(str, self.expect))
            return f"{self.name} ({self.tries}): expected {wanted}, got {_ended(judgement)}"
        told = [judgement.detail]
        for result in judgement.results:
            told += [result.detail, result.output, result.errors]
        for secret in self.hides:
            if any(secret in text for text in told):
                return f"{self.name} ({self.tries}): the judgement reveals {secret!r}"
        return None


def entries(arch: str) -> list[Entry]:
    """Every program for an architecture ('x86_64', 'aarch64'), by name."""
    if arch not in ARCHES:
        raise ValueError(f"no programs for the architecture {arch!r}; there are some for {', '.join(ARCHES)}")
    return [entry for entry in map(load, paths()) if entry.arch in (None, arch)]


def paths() -> list[Path]:
    """Paths of all programs."""
    return sorted(path for folder in FOLDERS for path in (PROGRAMS / folder).iterdir() if path.suffix in LANGUAGES)


def load(path: Path) -> Entry:
    """Read one program. Line ends and byte-order marks are kept."""
    try:
        text = path.read_bytes().decode()
        lines, length = _header(text, _COMMENT[path.suffix])
        return _entry(path, text, lines, length)
    except ValueError as problem:
        raise MalformedHeader(f"{path.parent.name}/{path.name}: {problem}") from problem


def _entry(path: Path, text: str, lines: Lines, length: int) -> Entry:
    single = {key: value for key, value in lines if key in _ONCE}
    for key in ("tries", "expect"):
        if not single.get(key):
            raise ValueError(f"the header lacks '{key}:'")
    calls = path.parent.name == "calls"
    if calls != any(key == "code" for key, _ in lines):
        raise ValueError("programs in calls/, and only those, need 'code:'")
    suite = TestSuite(
        tests=_call_tests(lines) if calls else _io_tests(lines) or SUM,
        limits=_limits(single.get("limits", "")),
        checker=Checker(name=_one_of(single.get("checker", "tokens"), get_args(CheckerName), "checker")),
    )
    allowed = LANGUAGES[path.suffix]
    arch = single.get("arch")
    return Entry(
        path=path,
        name=f"{path.parent.name}/{path.stem}",
        language=_one_of(single.get("language", allowed[0]), allowed, "language"),
        source=text[:length] + _expanded(text[length:], (value for key, value in lines if key == "expand")),
        tries=single["tries"],
        expect=tuple(_expected(part.strip()) for part in single["expect"].split("|")),
        hides=tuple(value for key, value in lines if key == "hides"),
        arch=None if arch is None else _one_of(arch, ARCHES, "arch"),
        test_suite=suite,
    )


def _header(text: str, comment: str) -> tuple[Lines, int]:
    """Keys and values of the header in order, and its length in characters."""
    lines: list[tuple[str, str]] = []
    length = 0
    for raw in text.splitlines(keepends=True):
        line = raw.removeprefix("\ufeff").rstrip()
        if not line.startswith(comment):
            break
        found = re.fullmatch(rf"{comment} ([a-z]+):(?: (.*))?", line)
        if not found:
            raise ValueError(f"not a 'key: value' line: {line!r}; end the header with a blank line")
        key, value = found[1], found[2] or ""
        if key not in _ONCE | _REPEATED:
            raise ValueError(f"unknown key '{key}'; the keys are {', '.join(sorted(_ONCE | _REPEATED))}")
        if key in _ONCE and any(key == earlier for earlier, _ in lines):
            raise ValueError(f"'{key}:' is given twice")
        lines.append((key, value))
        length += len(raw)
    return lines, length


def _expected(text: str) -> Expected:
    found = re.fullmatch(r"([a-z_]+)(?:\((SIG[A-Z0-9]+)\))?", text)
    if not found:
        raise ValueError(f"cannot read the expectation {text!r}")
    outcome = Outcome(_one_of(found[1], [str(each) for each in Outcome if each not in _IMPOSSIBLE], "outcome"))
    if found[2] and outcome is not Outcome.RUNTIME_ERROR:
        raise ValueError(f"only a runtime_error has a signal: {text!r}")
    return Expected(outcome, found[2])


def _limits(text: str) -> Limits:
    kinds = {field.name: field.type for field in fields(Limits)}
    given: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        kind = kinds[_one_of(name, kinds, "limit")]
        given[name] = int(value) if kind in (int, int | None) else float(value)
    return Limits(**given)


def _io_tests(lines: Lines) -> tuple[IoTest, ...]:
    told = [(key, value) for key, value in lines if key in ("input", "output")]
    if [key for key, _ in told] != ["input", "output"] * (len(told) // 2):
        raise ValueError("every 'input:' needs an 'output:' right below it")
    texts = [_json_string(value) for _, value in told]
    return tuple(IoTest(*pair) for pair in zip(texts[::2], texts[1::2], strict=True))


def _call_tests(lines: Lines) -> tuple[CallTest, ...]:
    tests: list[tuple[str, list[str]]] = []
    for key, value in lines:
        if key == "function" or (key == "code" and not tests):
            tests.append((value if key == "function" else "", []))
        if key == "code":
            tests[-1][1].append(value)
    if not all(code for _, code in tests):
        raise ValueError("every 'function:' needs 'code:' below it")
    return tuple(CallTest(code="\n".join(code) + "\n", function=function) for function, code in tests)


def _expanded(body: str, rules: Iterable[str]) -> str:
    for rule in rules:
        found = re.fullmatch(r"([A-Z_]+) = (\".*\")(?: x (\d+))?", rule)
        if not found:
            raise ValueError(f'cannot read the expansion {rule!r}; write NAME = "text" x 1000')
        if found[1] not in body:
            raise ValueError(f"{found[1]} is expanded but never used")
        body = body.replace(found[1], _json_string(found[2]) * int(found[3] or 1))
    return body


def _json_string(text: str) -> str:
    value = json.loads(text)
    if not isinstance(value, str):
        raise ValueError(f"not a JSON string: {text}")
    return value


def _one_of(value: str, allowed: Iterable[str], what: str) -> Any:
    if value not in allowed:
        raise ValueError(f"unknown {what} {value!r}; choose from {', '.join(allowed)}")
    return value


def _ended(judgement: Judgement) -> str:
    first = judgement.first_failure
    parts = [str(judgement.outcome)]
    if first:
        parts.append(f"test {first.test}: {first.signal or ''} exit {first.exit_code} {first.detail}".strip())
        parts.append(f"output {first.output[:200]!r}, errors {first.errors[-400:]!r}")
    if judgement.detail:
        parts.append(judgement.detail[:400])
    return "; ".join(parts)
