"""LiveCodeBench: contest problems with the date they were first posed, for evaluation.

Reads the rows of code_generation_lite. Private tests are packed there, by base64, zlib and pickle; of a pickle nothing
but a string is taken. `since` and `until` choose problems by their date: v5 is everything up to 2025-02-01.
"""

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, ClassVar

from dojang.data.deepcoder import ask
from dojang.data.prepare import Known, Unusable
from dojang.data.python_tests import LIMITS, call, text
from dojang.settings import Section
from dojang.types import Problem

__all__ = ["LiveCodeBench"]


class LiveCodeBench(Section):
    """Contest problems by date."""

    ability: ClassVar[str] = "code"
    since: date | None = None
    """The first day a problem may be of."""
    until: date | None = None
    """The last one."""

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        return "test"

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        day = datetime.fromisoformat(str(row["contest_date"])).date()
        if (self.since and day < self.since) or (self.until and day > self.until):
            raise Unusable("it is of another time")
        name = str((_json(row["metadata"]) or {}).get("func_name") or "")
        public, private = (_tests(row[f"{kind}_test_cases"], name) for kind in ("public", "private"))
        if not private:
            raise Unusable("it has no private tests")
        return Problem(
            id=f"livecodebench/{row['question_id']}",
            source="livecodebench",
            messages=ask(row["question_content"].strip(), name, row["starter_code"] or ""),
            reference={"private": private, "public": public, "limits": LIMITS, "language": "python3"},
            tier=str(row["difficulty"]),
        )

    def known(self, row: Mapping[str, Any]) -> Known:
        return Known()


def _tests(packed: str, name: str) -> list[dict[str, str]]:
    found = []
    for each in _json(packed):
        if each["testtype"] == "functional":
            if not name:
                raise Unusable("it has tests of a function, but no name for it")
            arguments = [json.loads(line) for line in each["input"].split("\n") if line.strip()]
            found.append(call(name, arguments, json.loads(each["output"])))
        else:
            found.append(text(each["input"], each["output"]))
    return found


def _json(value: Any) -> Any:
    """JSON, or JSON that is packed."""
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
    """A pickle may call anything when it is loaded; this one may not."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} in a pickle that should be a string")
