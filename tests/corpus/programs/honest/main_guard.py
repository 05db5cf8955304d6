# tries: the usual main guard, with typing and a data class
# expect: accepted

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import NamedTuple


class Pair(NamedTuple):
    left: int
    right: int


@dataclass(order=True)
class Total:
    value: int = 0
    seen: list[Pair] = field(default_factory=list)

    def add(self, pair: Pair) -> Total:
        self.seen.append(pair)
        self.value += pair.left + pair.right
        return self


def main() -> int:
    print(Total().add(Pair(*map(int, sys.stdin.readline().split()))).value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
