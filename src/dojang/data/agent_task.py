"""Task folders for agents with a terminal: instructions, files, and a verifier.

    instruction.md            the prompt
    files/                    files of the working directory
    tests/test.sh             the verifier: writes a reward file; or tests/test_*.py, run by pytest
    task.toml                 settings, all optional

Harbor's layout is read as well: environment/ instead of files/, with a Dockerfile that only names a plain image, sets
the working directory and copies files. Whatever needs an image to be built, services or a network is refused.
"""

import hashlib
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["AgentTask", "RefusedTask", "TaskFile", "read_agent_task"]

_WORKDIR = "/app"
_TAKEN = ("bin", "dev", "etc", "lib", "lib64", "logs", "opt", "proc", "run", "sbin", "sys", "tests", "tmp", "usr")
_PLAIN_IMAGES = ("ubuntu", "debian", "python", "bash", "buildpack-deps")
_NETWORK = re.compile(
    r"\b(apt-get|apt|apk|yum|dnf|conda|uvx|curl|wget)\s|\b(pip3?|uv|npm|yarn|cargo|gem)\s+(install|pip|sync|add|tool)\b"
    r"|\bgit\s+clone\b"
)
_SETTINGS = {  # section -> settings that a sandbox without images, services and network cannot honour
    "environment": ("docker_image", "mcp_servers", "healthcheck", "gpus", "tpu", "allowed_hosts", "skills_dir"),
    "verifier": ("environment", "collect"),
    "agent": ("allowed_hosts",),
}


class RefusedTask(Exception):
    """A task folder that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file of a task."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class AgentTask:
    """A task for an agent."""

    name: str
    instruction: str
    files: Mapping[str, TaskFile]
    """Files of the working directory, by relative path."""
    tests: Mapping[str, TaskFile]
    workdir: str = _WORKDIR
    verifier_timeout_s: float = 600.0
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the agent and the verifier."""
    verifier_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of all that decides a reward."""
        found = hashlib.sha256(repr((self.instruction, self.workdir, self.verifier_timeout_s)).encode())
        found.update(repr((sorted(self.variables.items()), sorted(self.verifier_variables.items()))).encode())
        for number, group in enumerate((self.files, self.tests)):
            for name, file in sorted(group.items()):
                found.update(repr((number, name, file.executable, hashlib.sha256(file.content).digest())).encode())
        return found.hexdigest()


def read_agent_task(folder: Path) -> AgentTask:
    """Reads a task folder. Raises RefusedTask if it cannot be used here."""
    instruction = _text(folder, "instruction.md")
    if not instruction.strip():
        raise RefusedTask("instruction.md is missing or empty")
    settings = _settings(folder)
    tests = _read_files(folder / "tests")
    _check_tests(tests)
    workdir, files = _environment(folder, settings.get("environment", {}))
    verifier = settings.get("verifier", {})
    timeout = verifier.get("timeout_sec", 600.0)
    if not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
        raise RefusedTask(f"task.toml: verifier.timeout_sec={timeout!r} is not a number of seconds")
    return AgentTask(
        folder.name,
        instruction,
        files,
        tests,
        workdir,
        float(timeout),
        _variables("environment", settings.get("environment", {})),
        _variables("verifier", verifier),
    )


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedTask(f"{name} cannot be read: {error}") from None


def _settings(folder: Path) -> Mapping[str, Any]:
    """Reads task.toml; refuses settings that need more than a sandbox."""
    try:
        found = tomllib.loads(_text(folder, "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise RefusedTask(f"task.toml: {error}") from None
    if found.get("steps"):
        raise RefusedTask("task.toml: it has several steps; only tasks of one step are supported")
    for section, names in _SETTINGS.items():
        if not isinstance(found.get(section, {}), dict):
            raise RefusedTask(f"task.toml: {section} is not a section")
        for name in names:
            if found.get(section, {}).get(name):
                raise RefusedTask(f"task.toml: {section}.{name} is not supported: sandboxes have no images or services")
    if str(found.get("environment", {}).get("os", "linux")).lower() != "linux":
        raise RefusedTask("task.toml: environment.os is not linux")
    return found


def _variables(section: str, settings: Mapping[str, Any]) -> dict[str, str]:
    variables = settings.get("env", {})
    if not isinstance(variables, dict):
        raise RefusedTask(f"task.toml: {section}.env is not a table")
    for name, value in variables.items():
        if "${" in str(value):
            raise RefusedTask(f"task.toml: {section}.env.{name} takes a value of this machine, which no sandbox sees")
    return {str(name): str(value) for name, value in variables.items()}


def _read_files(folder: Path) -> dict[str, TaskFile]:
    """Reads all files below a folder. Links are refused: they may lead anywhere."""
    found = {}
    for top, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*names, *folders]):
            path = Path(top, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise RefusedTask(
                    f"{path.relative_to(folder.parent)} is a link or a special file; copy the file itself"
                )
            if path.is_file():
                where = path.relative_to(folder).as_posix()
                found[where] = TaskFile(path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def _check_tests(tests: Mapping[str, TaskFile]) -> None:
    if "Dockerfile" in tests:
        raise RefusedTask("tests/Dockerfile needs an image to be built")
    if "test.sh" not in tests:
        if not any(re.fullmatch(r"(.*/)?(test_[^/]*|[^/]*_test)\.py", name) for name in tests):
            raise RefusedTask("it has no verifier: neither tests/test.sh nor tests/test_*.py")
        return
    script = tests["test.sh"].content.decode(errors="replace")
    if "\r\n" in script:
        raise RefusedTask("tests/test.sh has Windows line ends, which bash reads as part of names; write it with \\n")
    for number, line in enumerate(script.splitlines(), 1):
        if not line.lstrip().startswith("#") and (match := _NETWORK.search(line)):
            raise RefusedTask(
                f"tests/test.sh, line {number}: `{match[0].strip()}` needs a network; sandboxes have none"
            )


def _environment(folder: Path, settings: Mapping[str, Any]) -> tuple[str, Mapping[str, TaskFile]]:
    """Returns the working directory and its files."""
    workdir = settings.get("workdir")
    given = _read_files(folder / "environment")
    if compose := [name for name in given if re.search(r"compose\.ya?ml$", name)]:
        raise RefusedTask(f"environment/{compose[0]} needs several containers")
    if "Dockerfile" in given:
        if (folder / "files").exists():
            raise RefusedTask("it has both files/ and environment/Dockerfile; keep one of them")
        content = given.pop("Dockerfile").content.decode(errors="replace")
        place, files = _from_dockerfile(list(_instructions(content)), given, workdir)
    elif given:
        raise RefusedTask("environment/ has files but no Dockerfile that copies them; move them to files/")
    else:
        place, files = str(workdir or _WORKDIR), _read_files(folder / "files")
    path = PurePosixPath(place)
    if not path.is_absolute() or len(path.parts) < 2 or path.parts[1] in _TAKEN or ".." in path.parts:
        raise RefusedTask(f"its working directory {place} cannot be used; use a folder such as {_WORKDIR}")
    return str(path), files


def _instructions(dockerfile: str) -> Iterator[tuple[int, str, str]]:
    """Yields line number, instruction and arguments."""
    lines = dockerfile.splitlines()
    at = 0
    while at < len(lines):
        number, line = at + 1, lines[at].strip()
        while line.endswith("\\") and at + 1 < len(lines):
            at += 1
            line = line[:-1] + " " + lines[at].strip()
        at += 1
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield number, word.upper(), rest.strip()


def _from_dockerfile(
    instructions: Sequence[tuple[int, str, str]], given: Mapping[str, TaskFile], workdir: object
) -> tuple[str, Mapping[str, TaskFile]]:
    """Follows a Dockerfile that builds nothing. Raises RefusedTask for any other."""
    place, copied = "/", dict[str, TaskFile]()
    for number, word, rest in instructions:
        where = f"environment/Dockerfile, line {number}"
        if word == "FROM":
            image = rest.split()[0] if rest else ""
            if image.partition("@")[0].partition(":")[0] not in _PLAIN_IMAGES:
                raise RefusedTask(f"{where}: the image {image} is none of {', '.join(_PLAIN_IMAGES)}")
        elif word == "WORKDIR":
            place = str(PurePosixPath(place) / rest.strip("\"'"))
        elif word == "COPY":
            copied |= _copied(where, rest, given, place)
        elif word not in ("LABEL", "CMD", "ENTRYPOINT"):
            raise RefusedTask(f"{where}: {word} needs an image to be built")
    place = str(workdir or place)
    inside = {}
    for path, file in copied.items():
        if not path.startswith(place.rstrip("/") + "/"):
            raise RefusedTask(f"environment/Dockerfile copies {path}, which is outside the working directory {place}")
        inside[path[len(place.rstrip("/")) + 1 :]] = file
    return place, inside


def _copied(where: str, rest: str, given: Mapping[str, TaskFile], place: str) -> dict[str, TaskFile]:
    """Files of a COPY instruction, by absolute path."""
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise RefusedTask(f"{where}: COPY {rest} cannot be read: {error}") from None
    if len(words) < 2 or any(word.startswith("--") or re.search(r"[*?\[$]", word) for word in words):
        raise RefusedTask(f"{where}: COPY {rest} is not supported; name files and folders, without options")
    *sources, target = words
    end = PurePosixPath(place) / target
    found = {}
    for source in sources:
        name = str(PurePosixPath(source)).lstrip("/")
        below = {path: file for path, file in given.items() if name == "." or path.startswith(name + "/")}
        if name in given:
            into = len(sources) > 1 or target.endswith("/") or target in (".", "./")
            found[str(end / PurePosixPath(name).name if into else end)] = given[name]
        elif below:
            found |= {str(end / (path if name == "." else path[len(name) + 1 :])): file for path, file in below.items()}
        else:
            raise RefusedTask(f"{where}: environment/{name} does not exist")
    return found
