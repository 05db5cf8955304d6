"""Judges the corpus and reports unexpected outcomes. Run as a script, it does so as another user.

Imports the standard library and dojang's judge only: a script run as an ordinary user finds nothing else.
"""

import asyncio
import json
import platform
import sys
import zlib
from pathlib import Path

from corpus import Entry, entries
from dojang.judge.pool import JudgePool
from dojang.programs import Judgement, Stop, Submission
from dojang.types import Outcome

DIFFERENCES: dict[str, dict[str, tuple[Outcome, str]]] = {
    "namespaces": {},
    "landlock": {
        "compile/has_host_files": (Outcome.COMPILE_ERROR, "the compiler may not ask about files that are there"),
        "compile/has_judge_files": (Outcome.ACCEPTED, "that a path exists is no secret to Landlock"),
        "compile/include_standard_input": (Outcome.WRONG, "/dev/stdin is there, and empty"),
        "honest/file_in_tmp": (
            Outcome.RUNTIME_ERROR,
            "/tmp is shared by all users; the program's folder has another name",
        ),
        "python/stale_files": (Outcome.RUNTIME_ERROR, "as above"),
        "python/stubborn_files": (Outcome.RUNTIME_ERROR, "as above"),
    },
    "seccomp": {
        "compile/has_host_files": (Outcome.ACCEPTED, "the compiler sees which files there are"),
        "compile/has_judge_files": (Outcome.ACCEPTED, "as above"),
        "compile/include_standard_input": (Outcome.COMPILE_ERROR, "refused afterwards, as no part of the toolchain"),
        "compile/pragma_dependency": (Outcome.WRONG, "the compiler sees how old files are"),
        "honest/file_in_tmp": (Outcome.RUNTIME_ERROR, "Python programs open no files at all"),
        "python/stale_files": (Outcome.RUNTIME_ERROR, "as above"),
        "python/stubborn_files": (Outcome.RUNTIME_ERROR, "as above"),
        "python/shut_folders": (Outcome.RUNTIME_ERROR, "as above"),
    },
}
"""Outcomes that differ at weaker isolation levels, with the reason."""
_AT_A_TIME = 16
"""Programs submitted at a time: the pool caches a few dozen binaries."""


def problem_with(entry: Entry, judgement: Judgement) -> str | None:
    """Describe the difference from the expectation at this isolation level."""
    special = DIFFERENCES[judgement.isolation].get(entry.name)
    if special and judgement.outcome is special[0]:
        return None
    return entry.problem_with(judgement)


async def judge_all(isolation: str, cache: Path, chosen: list[Entry], binaries: Path | None = None) -> list[str]:
    """Judge all programs and return problems; empty if every outcome is as expected.

    `binaries`: a folder for the compiled hostile programs, which every isolation level runs. Programs of the other
    folders are compiled at every level.
    """
    turns = asyncio.Semaphore(_AT_A_TIME)
    async with JudgePool(cache=cache, isolation=isolation) as pool:

        async def judge(entry: Entry) -> str | None:
            submission = Submission(entry.language, entry.source, entry.test_suite, Stop.TIME_LIMIT)
            kept = _kept(pool, entry, binaries)
            key = (entry.language, entry.source)
            async with turns:
                if kept and kept.exists():
                    binary = kept.read_bytes()
                    pool._binaries.put(key, binary, len(binary))
                judgement = await pool.judge(submission)
                if kept and not kept.exists() and third(entry) and (binary := pool._binaries.get(key)):
                    kept.write_bytes(binary)
            return problem_with(entry, judgement)

        found = await asyncio.gather(*map(judge, chosen))
    return [problem for problem in found if problem]


def _kept(pool: JudgePool, entry: Entry, binaries: Path | None) -> Path | None:
    """Path of the binary for all levels; None if every level compiles it. Seccomp links differently."""
    if binaries is None or not entry.name.startswith("hostile/"):
        return None
    tools = pool.host.toolchain
    return None if tools is None or tools.is_shared(entry.source) else binaries / entry.path.stem


def third(entry: Entry) -> bool:
    """A fixed third of the corpus."""
    return zlib.crc32(entry.name.encode()) % 3 == 0


def main() -> None:
    """`judging.py ISOLATION CACHE BINARIES [PART]`"""
    isolation, cache, binaries, *part = sys.argv[1:]
    chosen = [entry for entry in entries(platform.machine()) if not part or third(entry)]
    sys.stdout.write(json.dumps(asyncio.run(judge_all(isolation, Path(cache), chosen, Path(binaries)))))


if __name__ == "__main__":
    main()
