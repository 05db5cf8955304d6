"""Checks a usage line (`dojang eval MODEL [--recipe R] ...`), which no shell could run, against the command line."""

import argparse
import re
from functools import cache
from unittest.mock import patch

from page_commands import ROOT, command_of, read_arguments
from pydantic import TypeAdapter, ValidationError

from dojang.commands.bench import available
from dojang.config.overrides import annotation_at, parse_value
from dojang.config.run_config import RunConfig

__all__ = ["check_setting", "check_usage", "is_usage"]

_OPTIONAL = re.compile(r"(?<!\S)\[(?=--|[A-Z])|(?<!\S)\.\.\.(?!\S)|\b[\w-]+(?:\|[\w-]+)+")
_COMMENT = re.compile(r"\s#\s.*")
_SETTING = re.compile(r"([a-z]+(?:\.[a-z_]\w*)*)=(.*)", re.DOTALL)
_LEFT_OPEN = re.compile(r"[A-Z]{2,}|\.\.|^[A-Za-z]$|^value$|^$")
_FREE = ("task.rewards.", "model.chat_template_kwargs.", "eval.benchmarks.", "data.generators.", "algo.reward_weights.")


def is_usage(line: str) -> bool:
    """Whether a line shows how to use dojang: [OPTIONAL] parts, choices a|b, or `...`."""
    line = _COMMENT.sub("", re.sub(r"'[^']*'|\"[^\"]*\"", "", line))
    return line.startswith("dojang ") and bool(_OPTIONAL.search(line))


def check_usage(line: str) -> None:
    """Checks that the command, its options and the settings of a usage line exist."""
    line = _COMMENT.sub("", line)
    words = [word for word in re.sub(r"(?<!\S)[\[(]|[\])](?!\S)", " ", line).split() if word not in ("...", "|")]
    words = words[words.index("dojang") + 1 :]
    if "--" in words:
        inner = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
        if "dojang" in inner:
            check_usage(" ".join(inner))
    command, rest = command_of(words)
    known = {option for each in command.params for option in each.opts}
    if command.name == "bench":
        known |= _bench_options("".join(words[1:2]))
    for word in rest:
        option = word.partition("=")[0]
        assert not option.startswith("--") or option in {*known, "--help"}, f"no option {option} of {command.name}"
    for word in rest:
        if not word.startswith("-") and command.name != "bench":
            check_setting(word.strip("'\""))


def check_setting(word: str) -> None:
    """Checks that the key of `key=value` exists and takes such a value, unless the value is left to the reader."""
    found = _SETTING.fullmatch(word)
    if not found or found[1].split(".")[0] not in RunConfig.model_fields or found[1].startswith(_FREE):
        return
    key, given = found.groups()
    annotation = annotation_at(key.split("."))
    assert annotation is not None, f"no setting {key}"
    if not _LEFT_OPEN.search(given) and key not in ("runtime", "rollout.engine"):
        try:
            TypeAdapter(annotation).validate_python(parse_value(given, annotation))
        except ValidationError as error:
            raise AssertionError(f"{word}: {error.errors()[0]['msg']}") from None


@cache
def _bench_options(name: str) -> set[str]:
    """Options of a benchmark, or of `dojang bench` itself."""
    if name in ("", "NAME", "--help"):
        return {"--json"}
    assert name in available(), f"no benchmark {name!r}; there are {', '.join(available())}"
    found: list[argparse.ArgumentParser] = []
    kept = argparse.ArgumentParser.__init__

    def keep(self: argparse.ArgumentParser, *given: object, **more: object) -> None:
        found.append(self)
        kept(self, *given, **more)  # type: ignore[arg-type]

    with patch.object(argparse.ArgumentParser, "__init__", keep):
        read_arguments(ROOT / "bench" / f"{name}.py", ["--help"])
    return {each for parser in found for action in parser._actions for each in action.option_strings}
