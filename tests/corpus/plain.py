"""Runs programs with `python3 main.py` and with the judge, and reports differences.

Both use a virtual environment without packages: the effect of files in site-packages on a starting interpreter is not
compared.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dojang.core.paths import cache_root
from dojang.judge.interpreter import find_python
from dojang.judge.pool import JudgePool
from dojang.programs import Limits

PROBES = Path(__file__).parent / "probes"
LIMITS = Limits(cpu_s=90, wall_s=300, memory_mb=1024, output_mb=16)
"""Long enough for the slowest published solution on a slow, busy machine: programs of these tests all end."""
EXTRA = "import io, os, sys\n"
IMPORTS = {"signals": "import signal, sys\n", "threads": "import os, threading\n", "main": "import os, sys\n"}


@dataclass(frozen=True, slots=True)
class Probe:
    """A program and its input."""

    name: str
    source: str
    input: bytes = b"3 4\n5 6\nlast\n"


@dataclass(frozen=True, slots=True)
class Seen:
    """Visible result of a run."""

    stdout: str
    stderr: str
    exit_code: int | None
    """None if a signal ended it."""
    signal: str | None = None


def programs() -> list[Probe]:
    """Probes of programs.txt, one program each."""
    parts = (PROBES / "programs.txt").read_text().split("### ")[1:]
    return [_program(*part.split("\n", 1)) for part in parts]


def _program(name: str, source: str) -> Probe:
    first, _, rest = source.partition("\n")
    if first.startswith("#input "):
        return Probe(name, rest, json.loads(first[7:]).encode())
    if first.startswith("#input-lines "):
        return Probe(name, rest, b"".join(b"%d\n" % number for number in range(int(first[13:]))))
    return Probe(name, source)


def expressions() -> list[Probe]:
    """Probes of expressions.txt: one program per section, which prints the value of each expression."""
    sections = (PROBES / "expressions.txt").read_text().split("## ")[1:]
    return [_evaluating(*section.split("\n", 1)) for section in sections]


def _evaluating(name: str, text: str) -> Probe:
    lines = [line for line in text.splitlines() if line]
    body = "".join(
        f"try:\n    print({line!r}, '=', {line})\nexcept BaseException as error:\n"
        f"    print({line!r}, 'raises', type(error).__name__, error)\n"
        for line in lines
    )
    return Probe(name, IMPORTS.get(name, EXTRA) + body)


def count_expressions() -> int:
    return sum(bool(line) and not line.startswith("## ") for line in _lines())


def _lines() -> list[str]:
    return (PROBES / "expressions.txt").read_text().splitlines()


@contextmanager
def environment() -> Iterator[str]:
    """Interpreter of a virtual environment without packages, readable by every user."""
    chosen = os.environ.get("DOJANG_PROBED_PYTHON")
    base = chosen or find_python("", private_user=os.geteuid() == 0).command[0]
    place = tempfile.mkdtemp(prefix="dojang-plain-", dir="/var/tmp")
    try:
        os.chmod(place, 0o755)
        subprocess.run([base, "-m", "venv", "--without-pip", "--symlinks", f"{place}/env"], check=True)
        yield f"{place}/env/bin/python3"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _restore_signals() -> None:
    """Restore default signal handlers: a shell makes background jobs ignore some, and programs would inherit that."""
    for each in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)


def run_plainly(python: str, probes: Sequence[Probe]) -> list[Seen]:
    """Run the probes with `python3 main.py`."""
    _restore_signals()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        return list(threads.map(lambda probe: _plain(python, probe), probes))


def _plain(python: str, probe: Probe) -> Seen:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        home = Path(place, "home")
        home.mkdir()
        (home / "main.py").write_text(probe.source)
        Path(place, "in").write_bytes(probe.input)
        with open(f"{place}/in", "rb") as given, open(f"{place}/out", "wb") as out, open(f"{place}/err", "wb") as err:
            ended = subprocess.run(
                [python, "main.py"],
                cwd=home,
                stdin=given,
                stdout=out,
                stderr=err,
                env={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home)},
                timeout=600,
                check=False,
            )
        texts = [Path(place, name).read_bytes().decode(errors="replace") for name in ("out", "err")]
        stdout, stderr = (text.replace(str(home), "/tmp") for text in texts)
        return _seen(stdout, stderr, ended.returncode)


def _seen(stdout: str, stderr: str, code: int) -> Seen:
    import signal

    return Seen(stdout, stderr, code) if code >= 0 else Seen(stdout, stderr, None, signal.Signals(-code).name)


def run_judged(python: str, probes: Sequence[Probe], isolation: str) -> list[Seen]:
    """Run the probes with the judge."""

    async def judged(pool: JudgePool, probe: Probe) -> Seen:
        execution = await pool.run("python3", probe.source, probe.input.decode(), LIMITS)
        assert execution.result is not None, (probe.name, execution.compile_log)
        stdout, stderr = (data.decode(errors="replace") for data in (execution.stdout, execution.stderr))
        return Seen(stdout, stderr, execution.result.exit_code, execution.result.signal)

    async def judge_all() -> list[Seen]:
        async with JudgePool(cache=cache_root(), isolation=isolation, python=python) as pool:
            return await asyncio.gather(*(judged(pool, probe) for probe in probes))

    return asyncio.run(judge_all())


def differences(
    probes: Sequence[Probe],
    plain: Sequence[Seen],
    judged: Sequence[Seen],
    allowed: Mapping[str, str],
    *,
    errors: bool = True,
    unordered: bool = False,
) -> dict[str, list[str]]:
    """Differing lines of each probe. `allowed` names probes, or beginnings of lines, that may differ.

    `errors`: compare standard error too. `unordered`: the characters of a line may be in another order.
    """
    found: dict[str, list[str]] = {}
    for probe, one, other in zip(probes, plain, judged, strict=True):
        if probe.name in allowed:
            continue
        left, right = _told(one, errors=errors), _told(other, errors=errors)
        if unordered:
            left, right = (["".join(sorted(line)) for line in lines] for lines in (left, right))
        lines = [
            f"plain {a!r}, judged {b!r}"
            for a, b in zip(left, right, strict=False)
            if a != b and not any(a.startswith(beginning) for beginning in allowed)
        ]
        if len(left) != len(right):
            lines.append(f"plain {one!r}, judged {other!r}")
        if lines:
            found[probe.name] = lines
    return found


def _told(seen: Seen, *, errors: bool) -> list[str]:
    ended = seen.signal or f"exit code {seen.exit_code}"
    text = "\n".join([seen.stdout, "standard error", seen.stderr if errors else "", ended])
    text = re.sub(r" at 0x[0-9a-f]+", " at 0x...", text)
    return re.sub(r"/tmp/dojang-judge-[^/'\s]+", "/tmp", text).split("\n")
