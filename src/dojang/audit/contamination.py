"""Contamination: finds problems whose text overlaps with an evaluation set."""

from collections.abc import Sequence
from pathlib import Path

from dojang.audit.findings import Audited
from dojang.audit.sources import open_source
from dojang.build.prepare_dataset import DATASETS
from dojang.core.errors import ConfigError
from dojang.data.overlap import OverlapIndex, statement_words

__all__ = ["compare_with"]


def compare_with(place: str, audited: Sequence[Audited], *, n: int, share: float) -> None:
    """Adds the overlap of each problem with the test split of the dataset at `place`, or with all of it if it has none.
    A dataset may be compared with its own test split; a held-out problem is not compared with itself."""
    name, _, where = (place, "", "") if Path(place).is_dir() else place.partition("=")
    if name in DATASETS and not where:
        raise ConfigError(f"--against {name} needs the place of the dataset: give --against {name}=PLACE")
    # The task does not matter here, so rows that name none are accepted.
    items = open_source(name, where, [], "code" if Path(name).is_dir() else "").items
    held_out = [each.problem for each in items if each.split == "test"] or [each.problem for each in items]
    texts, names = OverlapIndex(held_out, n), {each.id for each in held_out}
    asked = [each for each in audited if each.split != "test" or each.problem.id not in names]
    for each, words in zip(asked, statement_words([each.problem for each in asked]), strict=True):
        if (found := texts.search(words)) is None:
            continue
        each.overlap = (found.id, found.share)
        if found.share >= share:
            each.find("contaminated", f"{found.share:.0%} of its runs of {n} words are in {found.id}")
