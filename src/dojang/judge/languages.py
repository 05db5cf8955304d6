"""The languages programs may be written in: one row each."""

from dataclasses import dataclass
from typing import Literal

from dojang.core.errors import ConfigError
from dojang.programs import CallTest, Exam

__all__ = ["LANGUAGES", "OTHER_NAMES", "Language", "language", "refuse_mismatch"]


@dataclass(frozen=True, slots=True)
class Language:
    """One row."""

    kind: Literal["native", "python"]
    """Compiled to a program that runs by itself, or run by the warm interpreter."""
    file: str = ""
    """What the compiler expects a source to be called."""
    standard: str = ""
    trivial: str = ""
    """A program that does nothing, and shows that programs can be judged."""


LANGUAGES = {
    "cpp17": Language("native", "a.cpp", "gnu++17", "int main() {}\n"),
    "cpp20": Language("native", "a.cpp", "gnu++20", "int main() {}\n"),
    "python3": Language("python"),
}
OTHER_NAMES = {"cpp": "cpp17", "python": "python3"}
"""What clients of a judge service that know SandboxFusion call them."""


def language(name: str) -> Language:
    """The row of this name."""
    try:
        return LANGUAGES[OTHER_NAMES.get(name, name)]
    except KeyError:
        raise ConfigError(f"language {name!r} cannot be judged; there is {', '.join(LANGUAGES)}") from None


def refuse_mismatch(name: str, exam: Exam) -> None:
    """ConfigError for a language that there is not, or that cannot take such an exam."""
    if language(name).kind != "python" and any(isinstance(test, CallTest) for test in exam.tests):
        raise ConfigError(
            "the problem's tests call functions, which is for Python; a test by function call says nothing about a "
            f"program in {name}"
        )
