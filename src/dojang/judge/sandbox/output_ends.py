"""Keeps the beginning and the end of an output of any length, in bounded memory.

Standard library only: used inside sandboxes.
"""

__all__ = ["OutputEnds", "cut_middle"]


class OutputEnds:
    """Collects pieces of an output; keeps its first and last `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.head = bytearray()
        self.tail = bytearray()
        """The end, after the head and the middle that was dropped."""
        self.total = 0

    def add(self, piece: bytes) -> None:
        self.total += len(piece)
        room = self._most - len(self.head)
        if room > 0:
            self.head += piece[:room]
            piece = piece[room:]
        if piece:
            self.tail += piece[-self._most :] if self._most else b""
            del self.tail[: max(0, len(self.tail) - self._most)]


def cut_middle(head: bytes, tail: bytes, total: int, most: int) -> str:
    """Return the text of an output of `total` bytes in at most `most` characters: both ends, and between them how much
    was left out. `head` and `tail` have at least `most` characters each, or all there is."""
    if len(head) + len(tail) == total:
        text = (head + tail).decode(errors="replace")
        if len(text) <= most:
            return text
        first, last, missing = text, text, len(text)
        unit = "characters"
    else:
        first, last, missing = head.decode(errors="replace"), tail.decode(errors="replace"), total
        unit = "bytes"
    # The longest note this output can have: the number is at most `missing`.
    room = most - len(_note(missing, unit))
    if room <= 0:
        return first[:most]
    begin, end = first[: room - room // 2], last[len(last) - room // 2 :]
    kept = len(begin) + len(end) if unit == "characters" else len(begin.encode()) + len(end.encode())
    return begin + _note(max(0, missing - kept), unit) + end


def _note(count: int, unit: str) -> str:
    return f"\n... {count} {unit} left out ...\n"
