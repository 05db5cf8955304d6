"""Page numbers of the KV cache: which are free, and how many sequences hold each of the others."""

from collections.abc import Sequence

__all__ = ["PagePool"]


class PagePool:
    """Pages 1 to `size` - 1. Page 0 is never taken: page tables name it where a sequence has no page."""

    def __init__(self, size: int) -> None:
        self._holders = [0] * size
        self._free = list(range(size - 1, 0, -1))
        """Taken from the end: the lowest numbers first, then those freed last, which the processor may still cache."""

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` free pages, with one holder each."""
        if not count:
            return []
        taken = self._free[: -count - 1 : -1]
        assert len(taken) == count, "the caller has looked how many are free"
        del self._free[-count:]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share(self, pages: Sequence[int]) -> None:
        """One more holder of each page."""
        for page in pages:
            self._holders[page] += 1

    def shared(self, pages: Sequence[int]) -> int:
        """Number of leading pages that have other holders too."""
        return next((at for at, page in enumerate(pages) if self._holders[page] == 1), len(pages))

    def drop(self, pages: Sequence[int]) -> None:
        """One holder less of each page; a page without holders is free."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)
