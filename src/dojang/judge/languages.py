"""Languages of judged programs."""

from dataclasses import dataclass
from typing import Literal

from dojang.core.errors import ConfigError
from dojang.programs import CallTest, TestSuite

__all__ = ["LANGUAGES", "OTHER_NAMES", "Language", "check_language", "language"]


@dataclass(frozen=True, slots=True)
class Language:
    """One language."""

    kind: Literal["native", "python"]
    """Compiled to a native binary, or run by the warm interpreter."""
    file: str = ""
    """File name of the source for the compiler."""
    standard: str = ""
    trivial: str = ""
    """Program that does nothing, to check that the language can be judged."""


LANGUAGES = {
    "cpp17": Language("native", "a.cpp", "gnu++17", "int main() {}\n"),
    "cpp20": Language("native", "a.cpp", "gnu++20", "int main() {}\n"),
    "python3": Language("python"),
}
OTHER_NAMES = {"cpp": "cpp17", "python": "python3"}
"""Names that SandboxFusion's clients use."""


def language(name: str) -> Language:
    """Find a language by name. Raises ConfigError if it is unknown."""
    try:
        return LANGUAGES[OTHER_NAMES.get(name, name)]
    except KeyError:
        raise ConfigError(f"language {name!r} is not supported; choose one of {', '.join(LANGUAGES)}") from None


def check_language(name: str, suite: TestSuite) -> None:
    """Raise ConfigError for an unknown language, or one that cannot run this test suite's tests."""
    if language(name).kind != "python" and any(isinstance(test, CallTest) for test in suite.tests):
        raise ConfigError(f"the problem's tests call Python functions; they cannot judge a program in {name}")
