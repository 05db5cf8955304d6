"""Tables of rollouts for the page: a page of rows with snippets, and the numbers for its filters."""

from typing import Any

from dojang.viewer import parameters
from dojang.viewer.parameters import Given
from dojang.viewer.rollout_query import facets, page, rows_at
from dojang.viewer.viewed_run import ViewedRun

__all__ = ["facets_reply", "rollouts_reply"]

_MOST_ROWS = 1000


def rollouts_reply(run: ViewedRun, given: Given) -> dict[str, Any]:
    """Rows that meet the filters, in an order, from an offset on."""
    index, kind = run.index, given.get("kind") or "train"
    index.wait_for_first()
    offset = parameters.whole(given, "offset", 0, low=0) or 0
    limit = parameters.whole(given, "limit", 100, low=0, high=_MOST_ROWS) or 0
    rows = index.rollouts.rows(kind)
    matches = parameters.filter_of(given).matches(rows)
    search, found = run.search(given.get("q", ""))
    if found is not None:
        matches = found.matches(rows) if matches is None else matches & found.matches(rows)
    places, total = page(rows, matches, given.get("sort") or "-step", offset, limit)
    reply = rows_at(rows, kind, places)
    files = dict(index.indexed)
    where = [
        (file, files[file].info.name if file in files else "", row)
        for file, row in zip(rows.columns["file"][places].tolist(), rows.columns["row"][places].tolist(), strict=True)
    ]
    for row, snippet in zip(reply, index.snippets.get(where), strict=True):
        row["snippet"] = snippet
    return {
        "rows": reply,
        "total": total,
        "indexed": {"files": len(files), "of": max(index.total, len(files))},
        "search": search,
    }


def facets_reply(run: ViewedRun, given: Given) -> dict[str, Any]:
    """Kinds and steps there are, and number of samples by outcome, role, ..."""
    run.index.wait_for_first()
    return facets(run.index.rollouts, given.get("kind") or "train", parameters.whole(given, "step"))
