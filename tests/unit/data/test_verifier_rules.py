"""Lines of verifiers that may run the agent's files beside the reward."""

import pytest

from dojang.data.verifier_rules import risky_lines


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (". ./run.sh", "verifier's shell"),
        ("cd /app && source setup.sh", "verifier's shell"),
        ("if true; then . run.sh; fi", "verifier's shell"),
        ("out=$(perl main.pl)", "beside the reward"),
        ("/usr/bin/node main.js < in", "beside the reward"),
        ("awk -f prog.awk data", "beside the reward"),
        ("env -i PATH=/bin bash run.sh", "drops BASH_ENV"),
        ("python3 -m doctest main.py", "examples of a file"),
        ("out=$(python3 < main.py)", "beside the reward"),
        ("bash <(cat run.sh)", "beside the reward"),
        ("cat main.py | python3", "what it reads"),
        ("cat run.sh | bash -s 1 2; echo done", "what it reads"),
        ("cp main.py /tmp/m.py", "at the new place"),
        ("cat main.py | python3 - 1", "what it reads"),
        ('bash -c "$(cat run.sh)"', "what it reads"),
        ("perl -w /app/x.pl", "beside the reward"),
        ("source /app/test.sh", "verifier's shell"),
        ("perl /app/test.sh", "beside the reward"),
        ("cp /app/test.sh /tmp/", "at the new place"),
        ("bash -p run.sh", "BASH_ENV"),
        ("POSIXLY_CORRECT=1 bash run.sh", "BASH_ENV"),
    ],
)
def test_a_line_that_runs_a_file_of_the_agent_is_found(line: str, why: str) -> None:
    (found,) = risky_lines({"test.sh": f"set -e\n{line}\n".encode()})
    assert found.startswith("tests/test.sh, line 2: `")
    assert why in found


@pytest.mark.parametrize(
    "line",
    [
        'source "$TESTS/lib.sh"',
        ". /tests/lib.sh",
        "cd /tests; . lib.sh",
        'source "$(dirname "$0")/other.sh"',
        "perl -ne 'print if /x/' out.txt",
        "awk '{print $1}' out.txt",
        "python3 main.py",
        "bash run.sh",
        "find . -name main.py",
        "# source run.sh",
        "echo done. see run.sh",
        "env python3 main.py",
        "python3 - <<'END'",
        "python3 main.py < in.txt > out.txt",
        "cat in.txt | python3 main.py | sort",
        "python3 < /tests/check.py",
        "cp out.txt /tmp/out.txt",
        "set -euo pipefail",
    ],
)
def test_other_lines_are_not(line: str) -> None:
    assert not list(risky_lines({"test.sh": f"{line}\n".encode(), "lib.sh": b"true\n"}))
