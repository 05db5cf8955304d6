"""Programs of the judge's self-test, one per row, each with its expected outcome.

A program that tries to break out prints `blocked` if it was stopped and something else if not. A compiled one may
also be killed with SIGSYS. The tests' corpus is far larger; this table takes seconds on a new judge machine.
"""

import secrets
from dataclasses import dataclass

from dojang.programs import CallTest, IoTest, Limits, TestSuite
from dojang.types import Outcome

__all__ = ["CHECKS", "ENVIRONMENT", "Check", "import_check"]

ENVIRONMENT = "DOJANG_SELFTEST", "7d1f-in-the-environment"
"""Environment variable and value that the self-test sets and no program may see."""
SUM = TestSuite((IoTest("1 2\n", "3\n"), IoTest("20 22\n", "42\n")), Limits(cpu_s=1.0, memory_mb=64, output_mb=0.25))
CALLS = TestSuite((CallTest("assert candidate(1, 2) == 3", "add"), CallTest("assert candidate(20, 22) == 42", "add")))
BLOCKED = TestSuite((IoTest("", "blocked"),))
HASTE = TestSuite(SUM.tests[:1], Limits(cpu_s=0.2, wall_s=0.4))
SECRET = TestSuite((IoTest("", "expected-output-5512"),))
NOTE = f"dojang-selftest-{secrets.token_hex(8)}"  # unique, so that files of other runs do not matter
TWICE = TestSuite((IoTest(f"leave {NOTE}", "blocked"), IoTest(f"look {NOTE}", "blocked")))

ACCEPTED, WRONG, COMPILE_ERROR = Outcome.ACCEPTED, Outcome.WRONG, Outcome.COMPILE_ERROR
RUNTIME_ERROR, TIME_LIMIT = Outcome.RUNTIME_ERROR, Outcome.TIME_LIMIT
MEMORY_LIMIT, OUTPUT_LIMIT = Outcome.MEMORY_LIMIT, Outcome.OUTPUT_LIMIT


@dataclass(frozen=True, slots=True)
class Check:
    """One program and its expected outcome."""

    name: str
    language: str
    outcome: Outcome
    meaning: str
    """Consequence of any other outcome."""
    test_suite: TestSuite
    source: str
    escape: bool = False
    """The program tries something that only isolation prevents."""
    killed: bool = False
    """Being killed by SIGSYS is also a pass."""
    hides: str = ""
    """Text that must not appear anywhere in the judgement."""


def import_check(package: str) -> Check:
    """Check that programs can import an allowed package."""
    return Check(f"import {package}", "python3", ACCEPTED, UNFAIR, BLOCKED, f"import {package}\nprint('blocked')\n")


UNFAIR = "correct programs would get no reward"
TOO_KIND = "wrong programs would get a reward"
MISTAKEN = "failures would get the wrong outcome"
UNBOUNDED = "a program could exhaust the machine"
LEAKS = "programs could read this machine's files"
CHEATS = "a program could look up the answers"
REACHES = "programs could reach other machines and services"
SPREADS = "programs could leave processes behind"
ATTACKS = "a program could attack the judge"
DAMAGES = "programs could change this machine's files"
COLLUDES = "one run could leave notes for the next"


def _python(name: str, outcome: Outcome, meaning: str, suite: TestSuite, source: str) -> Check:
    return Check(name, "python3", outcome, meaning, suite, source)


def _cpp(name: str, outcome: Outcome, meaning: str, suite: TestSuite, source: str) -> Check:
    return Check(name, "cpp17", outcome, meaning, suite, source)


def _python_escape(name: str, meaning: str, body: str, suite: TestSuite = BLOCKED) -> Check:
    """`body` defines escaped(), which may also raise an OSError."""
    source = f"{body}\ntry:\n    print('escaped' if escaped() else 'blocked')\nexcept OSError:\n    print('blocked')\n"
    return Check(name, "python3", ACCEPTED, meaning, suite, source, escape=True, killed=True)


def _cpp_escape(name: str, meaning: str, attempt: str) -> Check:
    """`attempt` is an expression that is true if it succeeds."""
    source = f'{CPP_HEADERS}\nint main() {{ puts(({attempt}) ? "escaped" : "blocked"); }}\n'
    return Check(name, "cpp17", ACCEPTED, meaning, BLOCKED, source, escape=True, killed=True)


def _including(name: str, source: str) -> Check:
    return Check(name, "cpp17", COMPILE_ERROR, LEAKS, BLOCKED, source, escape=True, hides="root:")


CPP_HEADERS = """\
#include <cstdio>
#include <csignal>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <unistd.h>"""

FIND_ANSWER = """\
import gc, os, re, sys
pattern = re.compile("expected" + "-output-[0-9]+")
def found(text):
    match = pattern.search(text)
    if match:
        print(match.group())
        sys.exit()
for number in range(256):
    try:
        found(os.pread(number, 1 << 20, 0).decode(errors="replace"))
    except OSError:
        pass
frame = sys._getframe()
while frame:
    found(repr(list(frame.f_globals.values()) + list(frame.f_locals.values())))
    frame = frame.f_back
for each in gc.get_objects():
    if isinstance(each, (dict, list, tuple)):
        found(repr(each)[:10000])
print("nothing found")
"""

FIND_ENVIRONMENT = f"""\
import os
def escaped():
    seen = repr(dict(os.environ))
    for number in range(1, 1 << 15):
        try:
            seen += open(f"/proc/{{number}}/environ", errors="replace").read()
        except OSError:
            pass
    return {ENVIRONMENT[1][:5]!r} + {ENVIRONMENT[1][5:]!r} in seen"""

WRITE_OUTSIDE = """\
import os
def escaped():
    for folder in ("/", "/etc", "/usr", "/var/tmp", "/dev/shm", "/home", "/root"):
        path = os.path.join(folder, "written-by-dojang-selftest")
        try:
            open(path, "w").close()
            os.unlink(path)
        except OSError:
            continue
        return True"""

LEAVE_NOTE = """\
import os
word, name = input().split()
places = [os.path.join(folder, name) for folder in (".", "/tmp", "/dev/shm", "/var/tmp")]
def escaped():
    for place in places:
        try:
            open(place, "w" if word == "leave" else "r").close()
        except OSError:
            continue
        if word == "look":
            return True"""

READ_HOST = """\
def escaped():
    for path in ("/etc/passwd", "/etc/hostname", "/proc/self/status", "/proc/1/cmdline"):
        try:
            open(path).close()
            return True
        except OSError:
            pass"""

CHECKS = (
    _python("right program", ACCEPTED, UNFAIR, SUM, "print(sum(map(int, input().split())))"),
    _python("wrong program", WRONG, TOO_KIND, SUM, "print(3)"),
    _python("not a program", COMPILE_ERROR, MISTAKEN, SUM, "print((1"),
    _python("program that fails", RUNTIME_ERROR, MISTAKEN, SUM, "print(3)\nraise SystemExit(1)"),
    _python("endless loop", TIME_LIMIT, UNBOUNDED, HASTE, "while True: pass"),
    _python("endless sleep", TIME_LIMIT, UNBOUNDED, HASTE, "import time\ntime.sleep(1000)"),
    _python("endless memory", MEMORY_LIMIT, UNBOUNDED, SUM, "kept = []\nwhile True: kept.append(bytearray(1 << 20))"),
    _python("endless output", OUTPUT_LIMIT, UNBOUNDED, SUM, "while True: print('all work and no play' * 100)"),
    _python("right function", ACCEPTED, UNFAIR, CALLS, "def add(a, b): return a + b"),
    _python("wrong function", WRONG, TOO_KIND, CALLS, "def add(a, b): return 3"),
    _python(
        "answer equal to everything",
        WRONG,
        TOO_KIND,
        CALLS,
        "class Yes(int):\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()",
    ),
    _python("search for the answer", WRONG, CHEATS, SECRET, FIND_ANSWER),
    _python_escape("read files of the machine", LEAKS, READ_HOST),
    _python_escape("read the environment", "programs could read secrets of the judge", FIND_ENVIRONMENT),
    _python_escape("open a socket", REACHES, "import socket\ndef escaped(): return socket.socket()"),
    _python_escape("start a process", SPREADS, "import os\ndef escaped(): return os.fork() or os._exit(0) or True"),
    _python_escape("run another program", ATTACKS, "import os\ndef escaped(): os.execv('/bin/echo', ['echo'])"),
    _python_escape("kill its parent", ATTACKS, "import os\ndef escaped(): return not os.kill(os.getppid(), 9)"),
    _python_escape("write outside its folder", DAMAGES, WRITE_OUTSIDE),
    _python_escape("leave a file for the next test", COLLUDES, LEAVE_NOTE, TWICE),
    _cpp(
        "right program",
        ACCEPTED,
        UNFAIR,
        SUM,
        "#include <bits/stdc++.h>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }",
    ),
    _cpp("wrong program", WRONG, TOO_KIND, SUM, '#include <cstdio>\nint main() { puts("3"); }'),
    _cpp("not a program", COMPILE_ERROR, MISTAKEN, SUM, "int main() { return x; }"),
    _cpp("program that crashes", RUNTIME_ERROR, MISTAKEN, SUM, "int main() { *(volatile int*)8 = 1; }"),
    _cpp("endless loop", TIME_LIMIT, UNBOUNDED, HASTE, "int main() { for (volatile int i = 0;; i = i + 1); }"),
    _cpp(
        "endless memory",
        MEMORY_LIMIT,
        UNBOUNDED,
        SUM,
        "#include <cstdlib>\n#include <cstring>\nint main() { for (;;) memset(malloc(1 << 20), 1, 1 << 20); }",
    ),
    _cpp("endless output", OUTPUT_LIMIT, UNBOUNDED, SUM, '#include <cstdio>\nint main() { for (;;) puts("more"); }'),
    _cpp_escape("read files of the machine", LEAKS, 'fopen("/etc/passwd", "r") || fopen("/proc/self/status", "r")'),
    _cpp_escape("open a socket", REACHES, "socket(AF_INET, SOCK_STREAM, 0) >= 0"),
    _cpp_escape("start a process", SPREADS, "fork() >= 0"),
    _cpp_escape("run another program", ATTACKS, 'execl("/bin/echo", "echo", "escaped", (char*)0) == 0'),
    _cpp_escape("kill its parent", ATTACKS, "kill(getppid(), SIGKILL) == 0"),
    _cpp_escape("trace its parent", ATTACKS, "ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0"),
    _cpp_escape("write outside its folder", DAMAGES, 'fopen("/var/tmp/written-by-dojang-selftest", "w")'),
    _including("include a file of the machine", '#include "/etc/passwd"\nint main() {}'),
    _including("assemble a file of the machine", 'asm(".incbin \\"/etc/passwd\\"");\nint main() {}'),
)
