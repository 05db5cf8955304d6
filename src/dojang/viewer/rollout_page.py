"""One sample with all that is known of it: texts, tokens, tests, its other turns, and its group."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dojang.core.errors import ConfigError, RunDirError
from dojang.loop.endings import MAIN_ROLES
from dojang.viewer import parameters
from dojang.viewer.index import Snapshot
from dojang.viewer.judge_again import same_verdict
from dojang.viewer.parameters import Given
from dojang.viewer.parquet_rows import read_parquet_rows
from dojang.viewer.rollout_query import Row, find_rows, rows_at
from dojang.viewer.token_texts import token_rows
from dojang.viewer.viewed_run import ViewedRun

__all__ = ["TEXTS", "find_sample", "judge_reply", "read_texts", "rollout_reply", "tests_reply", "text_reply"]

TEXTS = ("question", "prompt", "response", "detail")
_WHOLE = 200_000
"""Characters of a text in a reply; `text_reply` has all."""
_OTHERS = 20_000
"""Characters of the responses of the group, and of outputs of tests."""
_UNREADABLE = (OSError, KeyError, ValueError, pa.ArrowException, RunDirError)
_GROUP_KEYS = ("index", "role", "turn", "outcome", "reward", "advantage", "response_length")


def rollout_reply(run: ViewedRun, given: Given) -> dict[str, Any]:
    """A sample by its step, prompt_index, index, role and turn."""
    kind = given.get("kind") or "train"
    rows, place = find_sample(run, given)
    group = _same(rows, place, ("step", "prompt_index"))
    columns = (*TEXTS, "isolation", "tokens", "mask", "logprobs", "version", "spans", "tests", "turns", "reward_parts")
    sample = _read(run, rows, [place], columns)[place]
    others = _read(run, rows, group, ("response",))
    short = dict(zip(group, rows_at(rows, kind, np.array(group)), strict=True))
    row = short[place]
    cut = {name: len(sample[name]) for name in TEXTS if sample[name] and len(sample[name]) > _WHOLE}
    values = _token_values(run, row)
    texts = run.tokens.of(row["role"], sample["tokens"] or ())
    return {
        "row": row,
        "advantage": row["advantage"],
        "reward_parts": {name: _finite(value) for name, value in sample["reward_parts"] or ()},
        **{name: (sample[name] or "")[:_WHOLE] for name in TEXTS},
        "isolation": sample["isolation"],
        "cut": cut,
        "tokens": token_rows(sample, texts, values),
        "tests": [_test(each) for each in sample["tests"] or ()],
        "environment_turns": [{name: _finite(value) for name, value in each.items()} for each in sample["turns"] or ()],
        "turns": [
            {key: short[each][key] for key in ("role", "turn", "outcome", "reward")} | _cut(others[each]["response"])
            for each in group
            if short[each]["index"] == row["index"] and each != place
        ],
        "group": [{key: short[each][key] for key in _GROUP_KEYS} | _cut(others[each]["response"]) for each in group],
        "recorded": {
            "token_values": bool(values),
            "vocabulary": texts is not None,
            "tests": bool(sample["tests"]),
        },
    }


def text_reply(run: ViewedRun, given: Given) -> str:
    """A whole text of a sample: question, prompt, response or detail."""
    column = given.get("column") or "response"
    if column not in TEXTS:
        raise ConfigError(f"column={column!r:.80} is no text; choose one of {', '.join(TEXTS)}")
    rows, place = find_sample(run, given)
    return read_texts(run, rows, place, column)


def judge_reply(run: ViewedRun, given: Given) -> dict[str, Any]:
    """Verdict of the recorded response when it is graded now, and whether it is the one that was recorded."""
    rows, place = find_sample(run, given)
    kind = given.get("kind") or "train"
    (row,) = rows_at(rows, kind, np.array([place]))
    if row["role"] not in MAIN_ROLES:
        raise ConfigError(f"samples of the role {row['role']} are graded together with other samples, not alone")
    sample = _read(run, rows, [place], ("response", "turns"))[place]
    if sample["turns"]:
        raise ConfigError("an environment graded this conversation turn by turn; a response alone cannot be graded")
    request = {"kind": kind, "problem": str(row["problem"]), "text": sample["response"] or ""}
    verdict = run.grading.ask(request)
    verdict["tests"] = [_test(each) for each in verdict["tests"]]
    return verdict | {"same": same_verdict(row["outcome"], row["reward"], verdict)}


def tests_reply(run: ViewedRun, given: Given) -> dict[str, Any]:
    """Inputs and expected outputs of the tests of a problem, and the reference of one without tests."""
    return run.grading.ask({"kind": given.get("kind") or "train", "problem": given.get("problem", "")})


def find_sample(run: ViewedRun, given: Given) -> tuple[Snapshot, int]:
    """Position of a sample in the index. Raises ConfigError if there is none."""
    ids, role = parameters.sample_ids(given)
    kind = given.get("kind") or "train"
    index = run.index
    index.wait_for(kind, ids["step"])
    rows = index.rollouts.rows(kind)
    places = find_rows(rows, ids).tolist()
    if role:
        number = rows.names.number("role", role)
        places = [each for each in places if rows.columns["role"][each] == number]
    if not places:
        named = ", ".join(f"{name} {value}" for name, value in ids.items())
        raise ConfigError(f"there is no sample of {kind!r:.80} with {named}{f', role {role!r:.80}' if role else ''}")
    return rows, int(places[0])


def read_texts(run: ViewedRun, rows: Snapshot, place: int, column: str) -> str:
    """A text of a sample."""
    return str(_read(run, rows, [place], [column])[place][column] or "")


def _same(rows: Snapshot, place: int, names: Sequence[str]) -> list[int]:
    found: list[int] = find_rows(rows, {name: int(rows.columns[name][place]) for name in names}).tolist()
    return found


def _read(run: ViewedRun, rows: Snapshot, places: Sequence[int], columns: Sequence[str]) -> dict[int, Row]:
    """Columns of samples, from their files."""
    found: dict[int, Row] = {}
    for number in {int(rows.columns["file"][place]) for place in places}:
        here = {int(rows.columns["row"][each]): each for each in places if rows.columns["file"][each] == number}
        if (file := run.index.indexed.get(number)) is None:
            raise RunDirError("the sample's file was replaced or deleted meanwhile; load the page again")
        try:
            read = read_parquet_rows(run.files, file.info.name, here, columns)
        except _UNREADABLE as error:
            reason = (str(error).splitlines() or [""])[0]
            raise RunDirError(f"{file.info.name} cannot be read: {reason}; copy it again from the run") from error
        found |= {here[row]: values for row, values in read.items()}
    return found


def _token_values(run: ViewedRun, row: Row) -> Row:
    """The trainer's log-probs and entropies of a sample; empty if they were not recorded."""
    name = f"{row['kind']}-{row['step']:06d}.parquet"
    try:
        info = run.files.listing("token_values").get(name)
        if info is None:
            return {}
        with run.files.open_parquet(info.name) as file:
            ids = file.read(columns=["prompt_index", "index", "role", "turn"], use_threads=False)
        keys = ("prompt_index", "index", "role", "turn")
        same = pc.and_kleene(*(pc.equal(ids[key], row[key]) for key in keys[:2]))
        for key in keys[2:]:
            same = pc.and_kleene(same, pc.equal(ids[key], row[key]))
        places = np.flatnonzero(pc.fill_null(same, False).to_numpy())
        if not len(places):
            return {}
        at = int(places[0])
        return read_parquet_rows(run.files, info.name, [at], ["trainer_logprobs", "entropies"])[at]
    except _UNREADABLE:
        return {}


def _test(result: Mapping[str, Any]) -> Row:
    texts = {name: (result[name] or "")[:_OTHERS] for name in ("detail", "output", "errors")}
    return {name: _finite(value) for name, value in result.items()} | texts


def _cut(text: str | None) -> Row:
    """The response, and its length if it is cut."""
    found: Row = {"response": (text or "")[:_OTHERS]}
    return found | {"cut": len(text)} if text and len(text) > _OTHERS else found


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
