"""The judge runs a program as the plain interpreter and shell do: no output of a program tells them apart.

Hundreds of probes run with `python3 main.py` and with the judge, at every isolation level of this machine. A share of
them always runs, all of them with the slow tests. The tables below are the documented exceptions (docs/judge.md).
"""

import asyncio
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import plain
import pytest
from plain import Probe, Seen, differences, expressions, programs, run_judged, run_plainly

from dojang.core.paths import cache_root
from dojang.judge.execution import Execution
from dojang.judge.host_capabilities import probe
from dojang.judge.pool import JudgePool
from dojang.programs import Limits

ISOLATIONS = ("namespaces", "landlock", "seccomp", "none")
EVERYWHERE = {
    "coroutine left at the end": "the warning has a line more, since modules can still be imported then",
}
WITHOUT_FILES = {
    **dict.fromkeys(
        (
            "stdout replaced by dup2",
            "atexit that prints its frames",
            "a file left open",
            "traceback formatted",
            "stack printed",
            "import of its own file",
            "source of a function",
            "source of a class",
            "reads itself",
            "writes a file and reads it",
            "imports a module it has written",
            "resource warning",
            "help of a function",
            "builtin license",
            "email without a submodule",
            "delete and import again",
            "reload",
            "find_spec",
            "working directory changed",
            "temporary files",
            "main",
            "system",
            'open("main.py")',
        ),
        "opens a file, or imports what is not loaded beforehand",
    ),
}
"""Exceptions with isolation seccomp, where programs open no files, so tracebacks have no source lines."""
EXCEPTIONS = {each: EVERYWHERE | (WITHOUT_FILES if each == "seccomp" else {}) for each in ISOLATIONS}
SHARE = 8
"""One program in this many always runs."""


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    try:
        with plain.environment() as path:
            yield path
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no virtual environment can be made: {error}")


@pytest.fixture(scope="module")
def offers() -> dict[str, str]:
    return {**probe(), "none": ""}


@pytest.fixture(scope="module")
def everything(python: str) -> tuple[list[Probe], list[Seen]]:
    probes = expressions() + programs()
    return probes, run_plainly(python, probes)


def test_there_are_hundreds_of_probes() -> None:
    names = [each.name for each in (*expressions(), *programs())]
    assert len(names) == len(set(names))
    assert plain.count_expressions() + len(programs()) > 500
    assert all(each in names for each in EVERYWHERE)


def test_a_share_of_the_probes_prints_the_same(python: str, offers: dict[str, str]) -> None:
    isolation = next(each for each in ISOLATIONS if not offers[each])
    probes = [*expressions(), *programs()[::SHARE]]
    judged = run_judged(python, probes, isolation)
    compared = differences(probes, run_plainly(python, probes), judged, EXCEPTIONS[isolation], errors=files(isolation))
    assert compared == {}


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_all_probes_print_the_same(
    isolation: str, everything: tuple[list[Probe], list[Seen]], python: str, offers: dict[str, str]
) -> None:
    if offers[isolation]:
        pytest.skip(f"{isolation} cannot be had here: {offers[isolation]}")
    probes, seen = everything
    judged = run_judged(python, probes, isolation)
    assert differences(probes, seen, judged, EXCEPTIONS[isolation], errors=files(isolation)) == {}


def files(isolation: str) -> bool:
    return isolation != "seccomp"


# ---- C++ -----------------------------------------------------------------------------------------------------

CASES = 44
INPUT = "{} 10 20 30\r\nsecond line\nlast"


_compiled: dict[bool, bytes] = {}
"""Binary compiled by the first test, by whether it is linked dynamically."""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize(
    "isolation", [ISOLATIONS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in ISOLATIONS[1:])]
)
def test_the_same_binary_does_the_same(isolation: str, offers: dict[str, str]) -> None:
    if offers[isolation]:
        pytest.skip(f"{isolation} cannot be had here: {offers[isolation]}")
    source = (plain.PROBES / "behaviours.cpp").read_text()
    inputs = [INPUT.format(case) for case in range(CASES)]

    async def judge_all() -> tuple[list[Execution], bytes]:
        async with JudgePool(cache=cache_root(), isolation=isolation, workers=1) as pool:
            shared = bool(pool.host.launch_spec("cpp17", source)["shared"])
            if shared in _compiled:
                pool._binaries.put(("cpp17", source), _compiled[shared], len(_compiled[shared]))
            executions = [await pool.run("cpp17", source, each, Limits(memory_mb=512)) for each in inputs]
            _compiled[shared] = pool._binaries.get(("cpp17", source))
            return executions, _compiled[shared]

    executions, binary = asyncio.run(judge_all())
    assert executions[0].compiled, executions[0].compile_log
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        program = Path(folder, "program")
        program.write_bytes(binary)
        program.chmod(0o755)
        seen = [run_binary(program, each) for each in inputs]
    told = [
        Seen(each.stdout.decode(), each.stderr.decode(), each.result.exit_code, each.result.signal)
        if each.result
        else None
        for each in executions
    ]
    assert {case: (a, b) for case, (a, b) in enumerate(zip(seen, told, strict=True)) if a != b} == {}


def run_binary(program: Path, given: str) -> Seen:
    place = program.parent
    (place / "in").write_text(given, newline="")
    with open(place / "in") as stdin, open(place / "out", "wb") as out, open(place / "err", "wb") as err:
        ended = subprocess.run(
            ["program"],
            executable=program,
            stdin=stdin,
            stdout=out,
            stderr=err,
            env={"LANG": "C"},
            cwd="/",
            check=False,
        )
    stdout, stderr = ((place / name).read_bytes().decode() for name in ("out", "err"))
    code = ended.returncode
    return Seen(stdout, stderr, code) if code >= 0 else Seen(stdout, stderr, None, signal.Signals(-code).name)
