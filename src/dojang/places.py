"""Where things are kept that later runs use again."""

import os
from pathlib import Path

__all__ = ["absolute", "cache_root"]


def cache_root() -> Path:
    """$DOJANG_CACHE, else $XDG_CACHE_HOME/dojang, else ~/.cache/dojang."""
    if own := os.environ.get("DOJANG_CACHE"):
        return absolute(own)
    return absolute(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dojang"


def absolute(name: str) -> Path:
    """`name` as an absolute path, since workers may be started in another directory."""
    return Path(os.path.abspath(os.path.expanduser(name)))
