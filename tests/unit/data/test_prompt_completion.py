"""Rows of prompts and completions, in the formats of TRL and veRL."""

import json
from pathlib import Path

import pytest

from dojang.core.errors import DataError
from dojang.data.prompt_completion import PromptCompletionConfig
from dojang.types import Message

USER, SYSTEM, ASSISTANT = ({"role": role, "content": role} for role in ("user", "system", "assistant"))


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_format_becomes_a_prompt_and_a_completion(tmp_path: Path) -> None:
    path = write(
        tmp_path / "rows.jsonl",
        {"prompt": "2+2?", "completion": "4"},
        {"prompt": [SYSTEM, USER], "completion": [ASSISTANT]},
        {"messages": [USER, ASSISTANT, USER, {"role": "assistant", "content": "last"}]},
    )
    rows = PromptCompletionConfig(train=path, test=path).read("train")
    assert [row.columns["completion"] for row in rows] == ["4", "assistant", "last"]
    assert rows[0].messages == (Message("user", "2+2?"),)
    assert [message.role for message in rows[1].messages] == ["system", "user"]
    assert [message.role for message in rows[2].messages] == ["user", "assistant", "user"]
    assert rows[0].reference == "4"


def test_columns_can_have_other_names(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"question": "2+2?", "answer": "4", "level": 1})
    (row,) = PromptCompletionConfig(train=path, test=path, prompt="question", completion="answer").read("test")
    assert row.columns == {"question": "2+2?", "level": 1, "completion": "4"}


def test_rows_are_held_out_by_their_names(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", *({"prompt": str(at), "completion": "x"} for at in range(200)))
    config = PromptCompletionConfig(train=path, held_out=0.2)
    train, test = config.read("train"), config.read("test")
    assert len(train) + len(test) == 200
    assert 20 < len(test) < 60
    assert not {row.id for row in train} & {row.id for row in test}


def test_rows_that_cannot_be_read_are_refused_with_their_place(tmp_path: Path) -> None:
    for row, words in (
        ({"question": "x"}, "no column 'messages', only question"),
        ({"prompt": "x"}, "no column 'completion'"),
        ({"prompt": 3, "completion": "x"}, "neither text nor a list"),
        ({"messages": [USER]}, "one turn by the assistant"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "a role"),
    ):
        path = write(tmp_path / "rows.jsonl", row)
        with pytest.raises(DataError, match=rf"rows.jsonl, line 1: .*{words}"):
            PromptCompletionConfig(train=path, test=path).read("train")
