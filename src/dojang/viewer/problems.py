"""Problems of a run: how often each was sampled and solved, and how that changed over the steps."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dojang.core.errors import ConfigError
from dojang.viewer import parameters
from dojang.viewer.index import Snapshot
from dojang.viewer.parameters import Given
from dojang.viewer.rollout_page import read_texts
from dojang.viewer.rollout_query import check_order
from dojang.viewer.viewed_run import ViewedRun

__all__ = ["problem_reply", "problems_reply"]

_ORDERS = (
    *("problem", "data_source", "samples", "accepted", "mean_reward"),
    *("first_step", "last_step", "first_accepted_step"),
)
_MOST_ROWS = 1000
_CUT = 200_000


def problems_reply(run: ViewedRun, given: Given) -> dict[str, Any]:
    """A page of problems in an order; those without a value come last."""
    run.index.wait_for_first()
    sort = check_order(given.get("sort") or "problem", _ORDERS)
    table = _totals(run.index.rollouts.rows(given.get("kind") or "train"))
    if text := given.get("q"):
        table = table.filter(pc.match_substring(table["problem"], text[:1000], ignore_case=True))
    name, direction = sort.removeprefix("-"), "descending" if sort.startswith("-") else "ascending"
    order = pc.sort_indices(table, sort_keys=[(name, direction), ("problem", "ascending")])
    offset = parameters.whole(given, "offset", 0, low=0, high=2**31) or 0
    limit = parameters.whole(given, "limit", 100, low=0, high=_MOST_ROWS) or 0
    return {"rows": table.take(order.slice(offset, limit)).to_pylist(), "total": table.num_rows}


def _totals(rows: Snapshot) -> pa.Table:
    """One row per problem; computed once for these rows."""
    return rows.remember("problems", lambda: _compute_totals(rows))


def _compute_totals(rows: Snapshot) -> pa.Table:
    columns, accepted = rows.columns, rows.columns["outcome"] == rows.names.number("outcome", "accepted")
    steps = columns["step"]
    table = pa.table(
        {
            "problem": columns["problem"],
            "data_source": columns["data_source"],
            "accepted": accepted.astype(np.int32),
            "step": steps,
            "reward": pa.array(columns["reward"], from_pandas=True),
            "solved": pa.array(steps, mask=~accepted),
        }
    )
    wanted: list[Any] = [("step", "count"), ("data_source", "min"), ("accepted", "sum"), ("reward", "mean")]
    wanted += [("step", "min"), ("step", "max"), ("solved", "min")]
    sums = table.group_by("problem").aggregate(wanted)
    names = {column: pa.array(rows.names.texts(column), pa.string()) for column in ("problem", "data_source")}
    return pa.table(
        {
            "problem": names["problem"].take(sums["problem"]),
            "data_source": names["data_source"].take(sums["data_source_min"]),
            "samples": sums["step_count"],
            "accepted": sums["accepted_sum"],
            "mean_reward": sums["reward_mean"],
            "first_step": sums["step_min"],
            "last_step": sums["step_max"],
            "first_accepted_step": sums["solved_min"],
        }
    )


def problem_reply(run: ViewedRun, given: Given) -> dict[str, Any]:
    """A problem's question, and its samples by step, of all kinds."""
    name = given.get("id", "")
    index = run.index
    index.wait_for_first()
    history: list[dict[str, Any]] = []
    question = None
    kinds = index.rollouts.kinds
    for kind in sorted(kinds, key=lambda each: each != (given.get("kind") or "train")):
        rows = index.rollouts.rows(kind)
        places = np.flatnonzero(rows.columns["problem"] == rows.names.number("problem", name))
        if len(places):
            history += _history(rows, kind, places)
            if question is None:
                question = read_texts(run, rows, int(places[0]), "question")
    if not history:
        raise ConfigError(f"no sample of this run is of a problem {name!r:.200}")
    return {"problem": name, "question": (question or "")[:_CUT], "history": history}


def _history(rows: Snapshot, kind: str, places: "np.ndarray[Any, Any]") -> list[dict[str, Any]]:
    accepted = rows.columns["outcome"][places] == rows.names.number("outcome", "accepted")
    table = pa.table(
        {
            "step": rows.columns["step"][places],
            "accepted": accepted.astype(np.int32),
            "reward": pa.array(rows.columns["reward"][places], from_pandas=True),
        }
    )
    wanted: list[Any] = [
        ("step", "count"),
        ("accepted", "sum"),
        ("reward", "mean"),
        ("reward", "min"),
        ("reward", "max"),
    ]
    sums = table.group_by("step").aggregate(wanted).sort_by("step")
    return [
        {
            "step": each["step"],
            "kind": kind,
            "samples": each["step_count"],
            "accepted": each["accepted_sum"],
            "mean_reward": each["reward_mean"],
            "min": each["reward_min"],
            "max": each["reward_max"],
        }
        for each in sums.to_pylist()
    ]
