"""LiveCodeBench: contest problems with their publication date, for evaluation.

Reads the rows of code_generation_lite, and those of AReaL-boba-2-RL-Code (`question`, `input_output`), which AstraFlow
evaluates on. Private tests of the former are packed with base64, zlib and pickle; only a string is unpickled. `since`
and `until` select problems by date: v5 is everything up to 2025-02-01.
"""

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from datetime import date, datetime
from hashlib import sha256
from typing import Any, ClassVar

from dojang.data.deepcoder import make_prompt
from dojang.data.prepare_rows import Dataset, Unusable
from dojang.data.python_tests import judge_settings, read_tests
from dojang.types import Problem

__all__ = ["LiveCodeBench"]


class LiveCodeBench(Dataset):
    """Contest problems by date."""

    evaluation_only: ClassVar[bool] = True
    preferred: ClassVar[str] = "lcb_v5"
    since: date | None = None
    """Earliest date of a problem."""
    until: date | None = None
    """Latest date of a problem."""

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        self._check_date(row.get("contest_date") if "input_output" in row else row["contest_date"])
        if "input_output" in row:
            return _in_areals_layout(row)
        name = str((_json(row["metadata"]) or {}).get("func_name") or "")
        public, private = (_tests(row[f"{kind}_test_cases"], name) for kind in ("public", "private"))
        if not private:
            raise Unusable("it has no private tests")
        return Problem(
            id=f"livecodebench/{row['question_id']}",
            source="livecodebench",
            messages=make_prompt(row["question_content"].strip(), name, row["starter_code"] or ""),
            reference={"private": private, "public": public, **judge_settings(name)},
            tier=str(row["difficulty"]),
        )

    def _check_date(self, day: object) -> None:
        if not (self.since or self.until) and not day:
            return
        if not day:
            raise Unusable("it has no date, which since and until need")
        published = datetime.fromisoformat(str(day)).date()
        if (self.since and published < self.since) or (self.until and published > self.until):
            raise Unusable("its date is out of range")


def _in_areals_layout(row: Mapping[str, Any]) -> Problem:
    """Reads a row of `question` and `input_output`, with all tests in one list and starter code in the question."""
    question = (row["question"] or "").strip()
    if not question:
        raise Unusable("it has no statement")
    name, private = read_tests(row["input_output"])
    known = row.get("question_id") or sha256(question.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return Problem(
        id=f"livecodebench/{known}",
        source="livecodebench",
        messages=make_prompt(question, name),
        reference={"private": private, **judge_settings(name)},
        tier=str(row.get("difficulty") or ""),
    )


def _tests(packed: str, name: str) -> list[dict[str, str]]:
    found = _json(packed)
    return read_tests(found, name)[1] if found else []


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        pass
    try:
        return json.loads(_Strings(io.BytesIO(zlib.decompress(base64.b64decode(value, validate=True)))).load())
    except (ValueError, TypeError, zlib.error, binascii.Error, pickle.UnpicklingError, EOFError) as error:
        raise Unusable("its tests cannot be unpacked") from error


class _Strings(pickle.Unpickler):
    """Unpickles strings only: a general pickle may call any function."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a pickle that should be a string")
