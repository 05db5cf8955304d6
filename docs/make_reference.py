"""Generates docs/configuration.md from the settings' docstrings, docs/metrics.md from the metric registry and
docs/commands.md from the command line. `--check` only checks that they are up to date."""

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from typer.main import get_command

from dojang.commands import app
from dojang.config.key_docs import Key, keys
from dojang.core import errors
from dojang.track.alerts import ALERTS
from dojang.track.registry import GAUGES, ROWS, gauge_pattern

CONFIGURATION = """\
# Configuration

Every setting, as you write it in a recipe (`train: {lr: 1e-5}`) or on the command line (`train.lr=1e-5`). `make docs`
generates this page from the settings' docstrings; `dojang train --keys` prints the same. A section with a `name` has
further settings for each choice, such as `data.name=files`.

On the command line, the value of a text setting is taken as you write it: `data.system=no`,
`'data.prompt={question} Answer in \\boxed{}.'`. In quotes of YAML it may have escapes:
`'data.prompt="{question}\\nAnswer:"'`. All other values are YAML: `train.betas=[0.8,0.95]`.

`null` means no value for every setting: `data.limit=null`, `data.system=null`. The text "null" needs quotes of YAML:
`'data.system="null"'`.
"""

METRICS = """\
# Metrics

Every metric of `metrics.jsonl`, by the rows and panels of the [dashboard](dashboards.md), with its name in Prometheus.
`make docs` generates this page from `src/dojang/track/registry.py`. Each training step and each evaluation adds a line
to the file; metrics that do not apply are absent.

- Angle brackets stand for a name of the run: a data source, a reward function, an outcome.
- With [two models](workflows.md), the tester's metrics have the prefix `tester/`: `critic/`, `actor/`,
  `response_length/`, `groups/` and `judge/`. Without the prefix they are the coder's.
- A custom algorithm (`algo.name=custom`) may add others."""

GAUGES_INTRODUCTION = """
## Gauges added by exporters

| in Prometheus | meaning |
|---|---|"""

ALERTS_INTRODUCTION = """
## Alerts

Alerts of [`dojang dashboards`](dashboards.md). Each fires after its condition has held for the given time.

| alert | for | severity | meaning | action |

|---|---|---|---|---|"""

COMMANDS = """\
# Commands

`make docs` generates this page from the command line; `dojang COMMAND --help` prints the same.

- `KEY=VALUE` overrides a [setting](configuration.md): `train.lr=1e-5`.
- Training, evaluating, sampling, judging and reading runs are [Python calls](python-api.md), too.

| command | |
|---|---|"""

EXIT_CODES = """
## Exit codes

An error is one message: the wrong value, the reason, and what to do. The exit code tells the kind;
[troubleshooting](troubleshooting.md) goes by symptom.

| code | Python | meaning |
|---|---|---|
| 0 | | success |
| 1 | `DojangError` | Another error. `judge run`: not accepted. `data audit --strict`: verifier and data disagree. \
`track`: not everything was delivered. |"""


def configuration() -> Iterator[str]:
    yield CONFIGURATION
    sections: dict[str, list[Key]] = {}
    for key in keys():
        sections.setdefault(section_of(key), []).append(key)
    for section, members in sections.items():
        yield f"## {section}\n"
        plain_keys = [key for key in members if not key.only]
        shared = [key for key in members if "," in key.only]
        if plain_keys:
            yield from key_table(plain_keys)
        if shared:
            yield f"Shared by several choices of `{section}.name`:\n"
            yield from shared_table(shared)
        for choice in dict.fromkeys(key.only for key in members if key.only and "," not in key.only):
            yield f"### {choice}\n"
            further = [key for key in members if key.only == choice and key.name != f"{section}.name"]
            yield from key_table(further) if further else ["No further settings.\n"]


def section_of(key: Key) -> str:
    """Section of a setting: `data` for those of `data.name=files`."""
    return key.only.partition(".name=")[0] if key.only else key.name.rpartition(".")[0] or "run"


def key_table(members: list[Key]) -> Iterator[str]:
    yield "| key | type | default | |\n|---|---|---|---|"
    yield from (f"| `{key.name}` | {plain(key.kind)} | {key.default} | {plain(key.help)} |" for key in members)
    yield ""


def shared_table(members: list[Key]) -> Iterator[str]:
    yield "| key | type | default | | with |\n|---|---|---|---|---|"
    every = {choice for key in members for choice in key.only.partition(".name=")[2].split(", ")}
    for key in members:
        choices = key.only.partition(".name=")[2]
        choices = "all" if set(choices.split(", ")) == every else choices
        yield f"| `{key.name}` | {plain(key.kind)} | {key.default} | {plain(key.help)} | {choices} |"
    yield ""


def metrics() -> Iterator[str]:
    yield METRICS
    for row in ROWS:
        yield f"\n## {row.title}\n\n| panel | name | unit | meaning | in Prometheus |\n|---|---|---|---|---|"
        for panel in row.panels:
            for metric in panel.metrics:
                name = re.sub(r"\(.*\)\?", "", gauge_pattern(metric)).replace(".+", "*")  # roles are explained above
                yield f"| {panel.title} | `{metric.name}` | {metric.unit} | {metric.meaning} | `{name}` |"
    yield GAUGES_INTRODUCTION
    yield from (f"| `{name}` | {meaning} |" for name, meaning in GAUGES.items())
    yield ALERTS_INTRODUCTION
    for alert in ALERTS:
        yield f"| `{alert.name}` | {alert.wait} | {alert.severity} | {alert.meaning} | {alert.todo} |"


def commands() -> Iterator[str]:
    yield COMMANDS
    found = list(leaves("dojang", get_command(app)))
    for name, command in found:
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {help_text(command)} |"
    for name, command in found:
        yield from usage(name, command)
    yield EXIT_CODES
    kinds = [each for _, each in inspect.getmembers(errors, inspect.isclass) if each is not errors.DojangError]
    for error in sorted(kinds, key=lambda each: (each.exit_code, len(each.__mro__))):
        yield f"| {error.exit_code} | `{error.__name__}` | {plain(error.__doc__)} |"


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Commands that do something, in the order of the command line's help."""
    if not hasattr(command, "commands"):
        yield name, command
    else:
        for each, inner in command.commands.items():
            yield from leaves(f"{name} {each}", inner)


def usage(name: str, command: Any) -> Iterator[str]:
    positional = [each for each in command.params if each.param_type_name == "argument"]
    line = " ".join(
        [
            name,
            *(argument(each) for each in positional),
            *(["[OPTIONS]"] if len(command.params) > len(positional) else []),
        ]
    )
    yield f"\n## {name}\n\n{help_text(command)}\n\n```text\n{line}\n```\n"
    if not command.params:
        return
    yield "| | default | |\n|---|---|---|"
    for each in positional:
        yield f"| `{each.metavar or each.name}` | | {plain(each.help)} |"
    for each in command.params:
        if each.param_type_name == "option" and not each.hidden:
            yield f"| {option(each)} | {default(each)} | {plain(each.help)} |"


def argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name).rstrip(".") + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def option(parameter: Any) -> str:
    """Names of an option with the kind of its value: `--limit N`."""
    names = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    if parameter.is_flag:
        return names
    annotation = parameter.type_descriptor.annotation
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return f"{names} " + "\\|".join(each.value for each in annotation)
    return f"{names} {parameter.metavar or getattr(annotation, '__name__', 'value').upper()}"


def default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value == "" or isinstance(value, bool) or "Default:" in (parameter.help or ""):
        return ""
    return f"`{getattr(value, 'value', value)}`"


def help_text(command: Any) -> str:
    return plain(command.help)


def plain(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


PAGES = {"configuration.md": configuration, "metrics.md": metrics, "commands.md": commands}


def main() -> int:
    stale = 0
    for name, lines in PAGES.items():
        path, page = Path(__file__).parent / name, "\n".join(lines()).rstrip() + "\n"
        if "--check" in sys.argv:
            stale += not path.exists() or path.read_text() != page
        else:
            path.write_text(page)
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
