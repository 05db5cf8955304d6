"""Task folders: the plain layout and Harbor's. What a sandbox cannot do is refused, all of it at once."""

from pathlib import Path

import pytest

from dojang.core.errors import DataError
from dojang.data.agent_task import AgentTask, RefusedTask, read_agent_task
from dojang.data.agent_tasks import AgentTasksConfig

SCRIPT = "echo 1 > /logs/verifier/reward.txt\n"


def make(folder: Path, **files: str) -> Path:
    """Writes a task; __ in a name is a slash, _dot_ a dot."""
    for name, text in {"instruction_dot_md": "Do it.", "tests__test_dot_sh": SCRIPT, **files}.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def harbor(folder: Path, dockerfile: str, **files: str) -> Path:
    return make(folder, environment__Dockerfile=dockerfile, **files)


def test_a_plain_task(tmp_path: Path) -> None:
    task = read_agent_task(make(tmp_path / "one", files__src__a_dot_py="print(1)", solution__solve_dot_sh="secret"))
    assert (task.name, task.instruction, task.workdir) == ("one", "Do it.", "/app")
    assert {name: file.content for name, file in task.files.items()} == {"src/a.py": b"print(1)"}
    assert set(task.tests) == {"test.sh"}


def test_settings_of_harbor(tmp_path: Path) -> None:
    text = """
version = "1.0"
[metadata]
difficulty = "easy"
[verifier]
timeout_sec = 30.0
env = { LEVEL = "2" }
[agent]
timeout_sec = 900.0
[environment]
cpus = 1
memory_mb = 2048
network_mode = "no-network"
env = { NAME = "x" }
"""
    dockerfile = (
        "# syntax=docker/dockerfile:1\nFROM ubuntu:24.04\nWORKDIR /workspace\nCOPY data/ ./data\n"
        "COPY a.txt \\\n  b.txt ./\nCOPY a.txt c.txt\n"
    )
    files = {"environment__a_dot_txt": "A", "environment__b_dot_txt": "B", "environment__data__x_dot_csv": "1"}
    task = read_agent_task(harbor(tmp_path, dockerfile, task_dot_toml=text, **files))
    assert task.workdir == "/workspace"
    assert {name: file.content for name, file in task.files.items()} == {
        "data/x.csv": b"1",
        "a.txt": b"A",
        "b.txt": b"B",
        "c.txt": b"A",
    }
    assert (task.verifier_timeout_s, task.variables, task.verifier_variables) == (30.0, {"NAME": "x"}, {"LEVEL": "2"})


@pytest.mark.parametrize(
    ("dockerfile", "reason"),
    [
        ("FROM ubuntu\nRUN apt-get update\nWORKDIR /app", "line 2: RUN needs an image to be built"),
        ("FROM ghcr.io/someone/image:1\nWORKDIR /app", "image ghcr.io/someone/image:1 is none of ubuntu"),
        ("FROM ubuntu", "working directory / cannot be used"),
        ("FROM ubuntu\nWORKDIR /usr/x", "working directory /usr/x cannot be used"),
        ('FROM ubuntu\nWORKDIR /app\nCOPY "a .', "cannot be read: No closing quotation"),
        ("FROM ubuntu\nWORKDIR /app\nCOPY nothing .", "environment/nothing does not exist"),
        ("FROM ubuntu\nWORKDIR /app\nCOPY --chmod=755 a .", "not supported; name files"),
        ("FROM ubuntu\nWORKDIR /app\nCOPY instruction.md /etc/x", "environment/instruction.md does not exist"),
        ("FROM ubuntu\nWORKDIR /app\nCOPY Dockerfile.txt /etc/x", "copies /etc/x, which is outside"),
    ],
)
def test_dockerfiles_that_build_something_are_refused(tmp_path: Path, dockerfile: str, reason: str) -> None:
    harbor(tmp_path, dockerfile, environment__Dockerfile_dot_txt="x")
    with pytest.raises(RefusedTask, match=reason):
        read_agent_task(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("instruction_dot_md", " ", "instruction.md is missing or empty"),
        ("task_dot_toml", "= 1", "task.toml"),
        ("task_dot_toml", "[[steps]]\nname = 'a'", "several steps"),
        ("task_dot_toml", "[environment]\ndocker_image = 'x'", "environment.docker_image is not supported"),
        ("task_dot_toml", "[environment]\ngpus = 1", "environment.gpus is not supported"),
        ("task_dot_toml", "[environment]\nos = 'windows'", "not linux"),
        ("task_dot_toml", "[environment]\nworkdir = 'relative'", "working directory relative"),
        ("task_dot_toml", "[verifier]\ntimeout_sec = 'long'", "not a number of seconds"),
        ("task_dot_toml", "[verifier]\nenv = { KEY = '${API_KEY}' }", "takes a value of this machine"),
        ("tests__test_dot_sh", "exit 0\r\n", "Windows line ends"),
        ("environment__docker-compose_dot_yaml", "", "several containers"),
        ("environment__data_dot_txt", "", "move them to files/"),
        ("tests__Dockerfile", "", "tests/Dockerfile needs an image"),
        ("tests__test_dot_sh", "cd /app\nuvx pytest /tests\n", "line 2: `uvx` needs a network"),
        ("tests__test_dot_sh", "apt-get install -y x\n", "`apt-get` needs a network"),
        ("tests__test_dot_sh", "pip install pytest\n", "`pip install` needs a network"),
    ],
)
def test_what_a_sandbox_cannot_do_is_refused(tmp_path: Path, name: str, text: str, reason: str) -> None:
    with pytest.raises(RefusedTask, match=reason):
        read_agent_task(make(tmp_path, **{name: text}))


def test_links_and_missing_verifiers_are_refused(tmp_path: Path) -> None:
    linked = make(tmp_path / "linked")
    (linked / "tests" / "data").symlink_to("/etc/passwd")
    with pytest.raises(RefusedTask, match="tests/data is a link"):
        read_agent_task(linked)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "instruction.md").write_text("Do it.")
    with pytest.raises(RefusedTask, match="no verifier"):
        read_agent_task(tmp_path / "none")


def test_the_digest_is_of_all_that_decides_a_reward(tmp_path: Path) -> None:
    def digest(**files: str) -> str:
        return read_agent_task(make(tmp_path / str(len(list(tmp_path.iterdir()))), **files)).digest

    assert digest() == digest(solution__solve_dot_sh="x")
    others = [{"files__a": "1"}, {"files__a": "2"}, {"files__b": "1"}, {"tests__b": "1"}, {"instruction_dot_md": "x"}]
    assert len({digest(), *(digest(**each) for each in others)}) == 6
    (tmp_path / "0" / "tests" / "test.sh").chmod(0o755)
    assert isinstance(task := read_agent_task(tmp_path / "0"), AgentTask)
    assert task.digest != digest()


def test_a_folder_of_tasks_has_two_splits(tmp_path: Path) -> None:
    for number in range(12):
        make(tmp_path / f"task{number}")
    data = AgentTasksConfig(path=str(tmp_path))
    train, test = data.load("train"), data.load("test")
    assert len(train) + len(test) == 12
    assert 1 <= len(test) < 6
    assert not {each.id for each in train} & {each.id for each in test}
    both = AgentTasksConfig(path=str(tmp_path), test_path=str(tmp_path))
    assert len(both.load("train")) == len(both.load("test")) == 12


def test_all_refused_tasks_are_named_at_once(tmp_path: Path) -> None:
    make(tmp_path / "good")
    harbor(tmp_path / "built", "FROM ubuntu\nRUN make")
    make(tmp_path / "empty", instruction_dot_md="")
    with pytest.raises(DataError) as caught:
        AgentTasksConfig(path=str(tmp_path)).load("train")
    assert "2 of 3 tasks cannot be used here" in str(caught.value)
    assert "built: environment/Dockerfile, line 2: RUN needs" in str(caught.value)
    assert "empty: instruction.md is missing" in str(caught.value)


def test_folders_without_tasks_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        AgentTasksConfig(path=str(tmp_path / "nowhere")).load("train")
    with pytest.raises(DataError, match="has no task folders"):
        AgentTasksConfig(path=str(tmp_path)).load("train")
    make(tmp_path / "only")
    with pytest.raises(DataError, match="has one task"):
        AgentTasksConfig(path=str(tmp_path)).load("test")


def test_a_verifier_that_may_run_files_of_the_agent_loads_with_a_warning(tmp_path: Path) -> None:
    make(tmp_path / "one", tests__test_dot_sh=f"cd /app\n. ./run.sh\n{SCRIPT}")
    make(tmp_path / "two")
    with pytest.warns(UserWarning, match=r"one: tests/test\.sh, line 2: `\. \./run\.sh` reads commands") as found:
        assert len(AgentTasksConfig(path=str(tmp_path)).read("train")) == 1
    assert len(found) == 1
