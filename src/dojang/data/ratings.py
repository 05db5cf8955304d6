"""Difficulty tiers by Codeforces rating, as CodeFu defines them."""

from collections.abc import Mapping
from typing import Literal

__all__ = ["TIERS", "Tier", "tier_of"]

Tier = Literal["easy", "hard", "expert"]
TIERS: Mapping[Tier, tuple[int, int]] = {"easy": (800, 1000), "hard": (1100, 2200), "expert": (2300, 3500)}
"""Lowest and highest rating of each tier."""


def tier_of(rating: float | str | None) -> str:
    """Tier of a rating; "" without a rating (None, 0 or -1), `rating N` for a rating that belongs to no tier."""
    number = int(float(rating or 0))
    if number <= 0:
        return ""
    return next((name for name, (low, high) in TIERS.items() if low <= number <= high), f"rating {number}")
