"""Pages of the KV cache by number: free pages, and reference counts of the others."""

from collections.abc import Sequence

__all__ = ["PagePool"]


class PagePool:
    """Pages 1 to `size` - 1. Page 0 is never taken: page tables name it where a sequence has no page."""

    def __init__(self, size: int) -> None:
        self._references = [0] * size
        self._free = list(range(size - 1, 0, -1))
        """Taken from the end: the lowest numbers first, then those freed last, which the processor may still cache."""

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` free pages, with a reference count of 1."""
        if not count:
            return []
        taken = self._free[: -count - 1 : -1]
        assert len(taken) == count, "the caller has looked how many are free"
        del self._free[-count:]
        for page in taken:
            self._references[page] = 1
        return taken

    def share(self, pages: Sequence[int]) -> None:
        """Add a reference to each page."""
        for page in pages:
            self._references[page] += 1

    def shared(self, pages: Sequence[int]) -> int:
        """Number of leading pages with more than one reference."""
        return next((at for at, page in enumerate(pages) if self._references[page] == 1), len(pages))

    def drop(self, pages: Sequence[int]) -> None:
        """Drop a reference to each page; a page without references is free."""
        for page in reversed(pages):
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)
