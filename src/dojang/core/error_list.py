"""Errors of several checks, reported together."""

from collections.abc import Iterator
from contextlib import contextmanager

from dojang.core.errors import ConfigError, DojangError

__all__ = ["ErrorList", "MissingPackage", "SeveralErrors"]


class MissingPackage(ConfigError):
    """A configuration needs a package that is not installed on this machine."""


class SeveralErrors(DojangError):
    """Several errors, reported together; the exit code is that of the first."""

    def __init__(self, errors: "list[DojangError]") -> None:
        self.errors, self.exit_code = errors, errors[0].exit_code
        listing = "\n".join("  - " + str(each).replace("\n", "\n    ") for each in errors)
        super().__init__(f"{len(errors)} problems:\n{listing}")


class ErrorList:
    """Collects the errors of several checks, to report all of them at once."""

    def __init__(self) -> None:
        self.errors: list[DojangError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keeps a DojangError raised inside."""
        try:
            yield
        except DojangError as error:
            found = error.errors if isinstance(error, SeveralErrors) else [error]
            known = {str(each) for each in self.errors}
            self.errors += [each for each in found if str(each) not in known]

    def raise_if_any(self) -> None:
        """Raises the only error, or SeveralErrors."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise SeveralErrors(self.errors)
