"""Places of datasets: a local path, an address such as s3://BUCKET/KEY, or an id on the Hugging Face hub."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

__all__ = ["ACCEPTED", "KINDS", "Place", "hub_id"]

ACCEPTED = (
    "a file, a directory, s3://BUCKET/KEY, or the id of a dataset on the Hugging Face hub (org/name or org/name/subset)"
)
KINDS = re.compile(r"\.(parquet|arrow|jsonl|ndjson|json|csv)(\.gz|\.zst|\.bz2)?$")
"""Ends of the names of files with rows."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)*")
_HUB_SCHEME = "hf://datasets/"


def hub_id(where: str) -> str:
    """Returns the hub id in `where`: org/name, org/name/subset, or hf://datasets/org/name/file. Empty: a local path, or
    another address."""
    if where.startswith(_HUB_SCHEME):
        return where.removeprefix(_HUB_SCHEME)
    if not _HUB_ID.fullmatch(where) or KINDS.search(where) or where.startswith(".") or Path(where).exists():
        return ""
    return where


def _place(value: object) -> object:
    """Makes a local path a Path, and leaves the rest text: a Path would drop a slash of s3://."""
    if value == "":
        raise ValueError(f"is empty; give {ACCEPTED}")
    return value if not isinstance(value, str) or "://" in value or hub_id(value) else Path(value)


Place = Annotated[Path | str, BeforeValidator(_place)]
"""Setting with the place of a dataset."""
