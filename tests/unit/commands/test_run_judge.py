"""The commands around the judge as a user meets them: each test starts the program."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from dojang.judge.json_schema import parse
from dojang.programs import Judgement
from dojang.types import Outcome

RIGHT = "print(sum(map(int, input().split())))"
PROBLEM = {
    "public": [{"input": "1 1\n", "output": "2\n"}],
    "private": [{"input": "1 2\n", "output": "3\n"}, {"input": "20 22\n", "output": "42\n"}],
    "limits": {"cpu_s": 1},
}

needs_cpp = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture(scope="module", autouse=True)
def isolation() -> None:
    from dojang.judge.host_capabilities import probe

    offers = probe()
    if all(offers[name] for name in ("namespaces", "landlock", "seccomp")):
        pytest.skip(f"nothing here to keep judged programs in: {offers}")


def dojang(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dojang", "judge", *arguments],
        capture_output=True,
        input=stdin,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "100", **environment},
    )


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    """Judges a program on a problem: `judge("a.py", source, problem, *flags)`."""

    def run(
        name: str, source: str, problem: Any = PROBLEM, *flags: str, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / name).write_text(source)
        (tmp_path / "p.json").write_text(json.dumps(problem))
        return dojang("run", str(tmp_path / name), "--problem", str(tmp_path / "p.json"), *flags, **environment)

    return run


def test_a_right_program(judge: Any) -> None:
    result = judge("a.py", RIGHT)
    assert (result.returncode, result.stderr) == (0, "")
    verdict, costs = result.stdout.splitlines()
    assert verdict == "accepted: 2 of 2 tests passed"
    assert re.fullmatch(r"CPU time up to \d+\.\d+ s of 1 s, memory up to \d+\.\d MB of 256 MB, isolation \w+", costs)


def test_the_judgement_as_json(judge: Any) -> None:
    result = judge("a.py", RIGHT, PROBLEM, "--json", "--tests", "all")
    assert result.returncode == 0
    judgement = parse(Judgement, result.stdout)
    assert (judgement.outcome, judgement.passed, judgement.total) == (Outcome.ACCEPTED, 3, 3)
    result = judge("a.py", "print(3)", PROBLEM, "--json")
    assert result.returncode == 1
    assert parse(Judgement, result.stdout).passed == 1


def test_a_wrong_program_is_shown_where_it_goes_wrong(judge: Any) -> None:
    result = judge("a.py", "print('3 ')\nimport sys\nsys.stderr.write('a word of mine')")
    assert result.returncode == 1
    head, _, rest = result.stdout.partition("\n\n")
    assert head.startswith("wrong: 1 of 2 tests passed\n")
    assert rest == (
        "first failure: test 1 (counting from 0): wrong, token 1 is '3', expected '42'\n"
        "input\n  20 22\n"
        "difference (- expected, + printed)\n  - 42\n  + 3\u00b7\n    ^\n"
        "standard error\n  a word of mine\n"
    )


def test_a_crash_shows_the_end_of_stderr(judge: Any) -> None:
    result = judge("a.py", "print('so far')\nint('x')", PROBLEM, "--stop", "failure")
    assert result.returncode == 1
    assert result.stdout.startswith("runtime error: 0 of 2 tests passed (1 runtime error, 1 not run)\n")
    assert "first failure: test 0 (counting from 0): runtime error, exit code 1\n" in result.stdout
    assert "printed (beginning)\n  so far\n" in result.stdout
    assert result.stdout.endswith("  ValueError: invalid literal for int() with base 10: 'x'\n")


def test_a_difference_beyond_what_a_judgement_keeps(judge: Any) -> None:
    problem = {"tests": [{"input": "", "output": "\n".join(map(str, range(4000)))}]}
    result = judge("a.py", "for i in range(4000): print(i if i != 3500 else 'no')", problem)
    assert "  ... 3,498 lines as expected\n    3498\n    3499\n  - 3500\n  + no\n" in result.stdout
    assert result.stdout.endswith("  ... 499 lines as expected\n")


def test_a_flood_of_escapes_stays_on_one_screen_and_harmless(judge: Any) -> None:
    result = judge("a.py", r"while True: print('\x1b[2J' + 'spam' * 1000)")
    assert result.returncode == 1
    assert "output limit, more than 16 MB of output" in result.stdout
    assert "\x1b" not in result.stdout
    assert r"\x1b[2Jspam" in result.stdout
    assert len(result.stdout.splitlines()) < 24


def test_unicode_on_a_stream_that_cannot_take_it(judge: Any) -> None:
    problem = {"tests": [{"input": "", "output": "\u65e5\u672c"}], "checker": {"name": "exact"}}
    result = judge("a.py", "print('\u65e5 ')", problem, PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (1, "")
    assert "- \\u65e5\\u672c" in result.stdout


def test_a_function_is_shown_with_its_test(judge: Any) -> None:
    problem = {"function": "add", "calls": [{"args": [1, 2], "expected": 3}]}
    assert judge("a.py", "def add(a, b): return a + b", problem).returncode == 0
    result = judge("a.py", "def add(a, b): return a - b", problem)
    assert result.returncode == 1
    assert "wrong, assertion failed: returned -1, expected 3\ntest\n  got = candidate(1, 2)\n" in result.stdout


def test_a_program_from_standard_input(tmp_path: Path) -> None:
    problem = tmp_path / "p.json"
    problem.write_text(json.dumps(PROBLEM))
    assert dojang("run", "-", "--problem", str(problem), "--language", "python3", stdin=RIGHT).returncode == 0
    result = dojang("run", "-", "--problem", str(problem), stdin=RIGHT)
    assert result.returncode == 2
    assert "unknown language of standard input; set --language" in result.stderr


@needs_cpp
def test_a_cpp_program_is_judged_or_its_compile_error_shown(judge: Any) -> None:
    source = '#include <cstdio>\nint main() { int a, b; scanf("%d%d", &a, &b); printf("%d", a + b); }'
    assert judge("a.cc", source).returncode == 0
    result = judge("a.cpp", "int main() { return undeclared; }")
    assert result.returncode == 1
    assert result.stdout.startswith("compile error: no test ran\nisolation ")
    assert "messages\n  a.cpp: In function 'int main()':\n" in result.stdout


def test_cpp_without_a_compiler(judge: Any, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("ldd", "bash", "sh"):
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    result = judge("a.cpp", "int main() {}", PROBLEM, PATH=str(tools))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "dojang: judging cpp17 needs g++, which is not on the path (Debian: apt install g++)\n"
    assert judge("a.py", RIGHT, PROBLEM, PATH=str(tools)).returncode == 0


@pytest.mark.parametrize(
    ("file", "problem", "flags", "code", "words"),
    [
        ("nosuch.py", "p.json", (), 3, "cannot read nosuch.py: No such file or directory"),
        ("folder.py", "p.json", (), 3, "cannot read folder.py: Is a directory"),
        ("latin.py", "p.json", (), 3, "latin.py is not UTF-8 text: invalid start byte at byte 0; save it as UTF-8"),
        ("a.py", "nosuch.json", (), 3, "cannot read nosuch.json: No such file or directory"),
        ("a.py", "latin.py", (), 3, "latin.py is not UTF-8 text"),
        ("a.py", "a.py", (), 3, "not valid JSON"),
        ("a.py", "hidden.json", ("--tests", "public"), 3, "has no public tests"),
        ("a.py", "p.json", ("--language", "java"), 2, "'java' is not supported; choose one of cpp17, cpp20, python3"),
        ("p.json", "p.json", (), 2, "unknown language of p.json; set --language (cpp17, cpp20, python3)"),
        ("a.py", "p.json", ("--isolation", "hope"), 2, "--isolation"),
        ("a.cpp", "calls.json", (), 2, "the problem's tests call Python functions"),
    ],
)
def test_wrong_arguments_are_refused_without_traceback(
    file: str, problem: str, flags: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "a.py").write_text(RIGHT)
    (tmp_path / "a.cpp").write_text("int main() {}")
    (tmp_path / "latin.py").write_bytes(b"\xff")
    (tmp_path / "p.json").write_text(json.dumps(PROBLEM))
    (tmp_path / "hidden.json").write_text(json.dumps({"private": PROBLEM["private"]}))
    (tmp_path / "calls.json").write_text(json.dumps({"function": "f", "calls": [{"expected": 1}]}))
    result = dojang("run", str(tmp_path / file), "--problem", str(tmp_path / problem), *flags)
    assert result.returncode == code
    assert words in result.stderr.replace(f"{tmp_path}/", "")
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_judge_error_has_exit_code_8(judge: Any) -> None:
    broken = {**PROBLEM, "checker": {"name": "program", "language": "python3", "source": "raise SystemExit(7)"}}
    result = judge("a.py", RIGHT, broken, "--json")
    assert result.returncode == 8
    assert parse(Judgement, result.stdout).outcome is Outcome.JUDGE_ERROR
    assert "could not be judged: " in result.stderr
    assert "the checker failed (exit code 7)" in result.stderr


def test_an_unusable_cache_is_refused(judge: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = judge("a.cpp", "int main() {}", PROBLEM, DOJANG_CACHE=str(tmp_path / "file"))
    assert result.returncode == 2
    if shutil.which("g++"):
        assert "set DOJANG_CACHE for another" in result.stderr


def test_the_commands_load_no_torch(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(RIGHT)
    (tmp_path / "p.json").write_text(json.dumps(PROBLEM))
    code = (
        "import sys\nfrom dojang.commands import main\n"
        f"sys.argv[1:] = ['judge', 'run', {str(tmp_path / 'a.py')!r}, '--problem', {str(tmp_path / 'p.json')!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "import dojang.judge.server\n"
        "sys.exit(' '.join({'torch', 'transformers', 'numpy', 'pyarrow'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@needs_cpp
def test_few_open_files(tmp_path: Path) -> None:
    """A shell may allow few, but the judge may raise that; where it may not, it says so."""
    (tmp_path / "a.cpp").write_text(
        '#include <cstdio>\nint main() { int a, b; scanf("%d%d", &a, &b); printf("%d", a + b); }'
    )
    (tmp_path / "p.json").write_text(json.dumps(PROBLEM))
    command = f"{sys.executable} -m dojang judge run a.cpp --problem p.json"
    soft = subprocess.run(["bash", "-c", f"ulimit -Sn 200; {command}"], cwd=tmp_path, capture_output=True, text=True)
    assert (soft.returncode, soft.stderr) == (0, "")
    hard = subprocess.run(["bash", "-c", f"ulimit -n 900; {command}"], cwd=tmp_path, capture_output=True, text=True)
    assert hard.returncode == 2
    assert "1001 open files" in hard.stderr
    assert "ulimit -Hn is 900" in hard.stderr


def test_interrupting_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("while True: pass")
    (tmp_path / "p.json").write_text(json.dumps({**PROBLEM, "limits": {"cpu_s": 600}}))
    command = [sys.executable, "-m", "dojang", "judge", "run", "a.py", "--problem", "p.json"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=_heed_interrupts
    )
    deadline = time.monotonic() + 60
    while len(session(process.pid)) < 4 and time.monotonic() < deadline:  # it, supervisor, worker, and what they start
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "dojang: interrupted\n")
    assert session(process.pid) == []


def _heed_interrupts() -> None:
    """Tests that a shell runs in the background are born deaf to them, and so are their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def session(leader: int) -> list[int]:
    """The processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


@contextmanager
def service(*flags: str, **environment: str) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """A running service: the process, its address, and what it said about itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dojang", "judge", "serve", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        address = re.search(r"http://\S+", first)
        assert address, process.communicate()
        yield process, address.group(), first + second
    finally:
        process.kill()
        process.communicate()


def test_the_service_runs_until_it_is_stopped() -> None:
    with service("--workers", "1", "--token-env", "MY_TOKEN", MY_TOKEN="secret") as (process, address, said):
        assert "for clients with the token" in said
        assert re.search(r"\n1 workers, isolation (namespaces|landlock|seccomp), languages .*python3\n$", said)
        with httpx.Client(base_url=address, headers={"Authorization": "Bearer secret"}, timeout=60) as client:
            health = client.get("/health").json()
            assert (health["status"], health["workers"]) == ("ok", 1)
            assert health["isolation"] in said
            suite = {"tests": [{"input": "1 2", "output": "3"}]}
            reply = client.post("/v1/judge", json={"language": "python3", "source": RIGHT, "test_suite": suite})
            assert parse(Judgement, reply.content).outcome is Outcome.ACCEPTED
            reply = client.post("/run_code", json={"language": "python", "code": RIGHT, "stdin": "1 2"})
            assert (reply.json()["status"], reply.json()["run_result"]["stdout"]) == ("Success", "3\n")
            assert httpx.post(f"{address}/v1/judge", json={}).status_code == 401
            assert 'language="python3",outcome="accepted"} 1.0' in client.get("/metrics").text
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, "closed\n", "")


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (("--host", "0.0.0.0"), {}, "set a token, or use host=127.0.0.1 (the token is read from the environment"),
        ((), {"DOJANG_JUDGE_TOKEN": "a b"}, "the judge's token must be printable ASCII without spaces"),
        (("--python", "/nowhere"), {}, "the interpreter '/nowhere' for judged programs does not run"),
        (("--port", "99999"), {}, "--port"),
    ],
)
def test_an_impossible_service_is_refused(flags: tuple[str, ...], environment: dict[str, str], words: str) -> None:
    result = dojang("serve", *flags, **environment)
    assert result.returncode == 2
    assert words in result.stderr
    assert "a b" not in result.stderr
    assert "Traceback" not in result.stderr
