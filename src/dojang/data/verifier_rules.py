"""Finds lines of a verifier's shell scripts that may run files of the agent beside the reward.

The sandbox has most forms run elsewhere (judge/sandbox/shell_jail.py). These are forms that it cannot tell apart. No
search of text finds all of them, and a file may be the verifier's own: a finding is a warning.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

__all__ = ["risky_lines"]

_START = r"(?:^|[;&|(`]|\b(?:then|do|else|if|while|exec|time)\s)\s*"
_FILE = r"(?P<file>[^-\s;&|<>()][^\s;&|<>()]*)"
_OTHERS = r"perl|ruby|node|deno|bun|php|lua[\d.]*|Rscript|julia|tclsh|busybox\s+\w+|[gm]?awk\s+-f"
_SHELLS = r"(?:ba|da|k|z)?sh"
_INTERPRETERS = rf"(?:\S*/)?(?:python[\d.]*|{_SHELLS})"
_RULES = (
    (
        re.compile(rf"{_START}{_INTERPRETERS}(?:\s+-\S*)*\s*<\s*(?P<file>[^<\s;&|]+)"),
        "runs this file beside the reward",
    ),
    (re.compile(rf"\|\s*{_INTERPRETERS}(?:\s+-s?(?:\s[^;&|]*)?|\s+/dev/stdin)?\s*(?:$|[;&|)`])"), "runs what it reads"),
    (re.compile(rf"{_START}{_INTERPRETERS}\s+-c\s*[\"']?\$\((?:cat\s|<)"), "runs what it reads"),
    (
        re.compile(rf"{_START}(?:cp|mv|ln|install)\s+(?:-\w+\s+)*(?P<file>\S+\.(?:py|sh))\s"),
        "may be run at the new place",
    ),
    (
        re.compile(rf"\b{_SHELLS}\s+(?:-\w*[ip]\w*|--posix|-o\s+posix)\b|\bPOSIXLY_CORRECT=|\benv\s+-u\s*BASH_ENV"),
        "does not read BASH_ENV",
    ),
    (re.compile(rf"{_START}(?:\.|source)\s+{_FILE}"), "reads commands of this file into the verifier's shell"),
    (  # options with e or n, such as perl's -ne, are followed by a program instead of a file
        re.compile(rf"{_START}(?:\S*/)?(?:{_OTHERS})(?:\s+-[^\s;&|<>()en]*)*\s+{_FILE}"),
        "runs this file beside the reward",
    ),
    (re.compile(r"\benv\s+(?:-i|-|--ignore-environment)\s+(?:\S+=\S*\s+)*(?:\S*/)?(?:ba|da)?sh\b"), "drops BASH_ENV"),
    (re.compile(r"\s-m\s*doctest\b"), "runs the examples of a file beside the reward"),
)
_OWN_FOLDER = re.compile(r"\$\((?:cd\s+)?\s*\"?(?:\$\()?\s*dirname[^)]*\)")
_TRUSTED = ("/tests/", "$TESTS/", "${TESTS}/", "/usr/", "/etc/", "/opt/")


def risky_lines(tests: Mapping[str, bytes]) -> Iterator[str]:
    """Yields a message for each such line, from the contents of the verifier's files by their names."""
    own = {PurePosixPath(name).name for name in tests}
    for name, content in sorted(tests.items()):
        if not name.endswith(".sh"):
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
            for pattern, why in () if line.lstrip().startswith("#") else _RULES:
                match = pattern.search(_OWN_FOLDER.sub("/tests", line))
                if match and not _is_own(match.groupdict().get("file"), own):
                    yield f"tests/{name}, line {number}: `{match[0].strip(' ;&|(`')}` {why}"


def _is_own(file: str | None, own: set[str]) -> bool:
    """Whether a path is one of the verifier's or the machine's."""
    plain = (file or "").strip("'\"")
    return plain.startswith(_TRUSTED) or (not plain.startswith("/") and PurePosixPath(plain).name in own)
