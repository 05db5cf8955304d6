"""docs/reproduce.md: every block runs, with small data and the tiny model; AWS is played by a few fixed answers here.

tests/sagemaker runs the sections that use AWS against moto.
"""

import shutil
import tarfile
from pathlib import Path

import pytest
from page_commands import typed

import published_rows
from doc_shell import Answer, blocks, run, value
from dojang.cluster.bootstrap import start_cluster
from dojang.cluster.sagemaker import sdk, submit
from dojang.core import section

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproduce.md"
SECTIONS = blocks(PAGE)

pytestmark = pytest.mark.slow

NOT_HERE = {
    "pip": "a package index",
    "docker": "a Docker daemon",
    "prometheus": "Prometheus; tests/prometheus runs it",
    "grafana": "Grafana",
    "python": "TRL and Ray Train; tests/with_trl parses the same command",
}
"""Programs that only record what they are asked, and what they would need."""

AWS = {
    "sts get-caller-identity": "123456789012",
    "service-quotas list-service-quotas": "L-12345678",
    "sagemaker list-training-jobs": "dojang-job-1",
    "sagemaker describe-training-job": "s3://dojang-123456789012/models/dojang-job-1/output/model.tar.gz",
}
"""What `aws` prints where the page keeps it; tests/sagemaker has moto answer instead."""

HUB = ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "Qwen/Qwen2.5-0.5B")
"""Models that `dojang eval` would fetch; the tiny one stands in."""

SETUP = """
export AWS_DEFAULT_REGION=us-east-1 ACCOUNT=123456789012 BUCKET=dojang-123456789012
export ROLE=arn:aws:iam::123456789012:role/dojang-job IMAGE=123456789012.dkr.ecr.us-east-1.amazonaws.com/dojang:1
"""
"""The variables that the section on the account sets."""


@pytest.fixture
def programs(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Answer]:
    """What the page's commands do here."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    published_rows.hub(folder)

    here = Here(folder, finished)

    def in_a_cluster(inner: list[str], *_: object) -> int:
        here.dojang(inner[1:])
        return 0

    # The SDK is not here; what comes before the request is.
    monkeypatch.setattr(sdk, "build_request", lambda job: {})
    monkeypatch.setattr(submit, "attach", lambda job, region, profile: 0)
    monkeypatch.setattr(section, "find_spec", lambda package: True)  # vLLM and Ray are on the clusters of the page
    # A cluster of hosts is not, either: its command runs without one.
    monkeypatch.setattr(start_cluster, "ray_cluster", in_a_cluster)
    recorded: dict[str, Answer] = dict.fromkeys(NOT_HERE, lambda arguments: "")
    return {"dojang": here.dojang, "aws": here.aws, "git": here.git, **recorded}


class Here:
    """The programs of the page that do something here."""

    def __init__(self, folder: Path, finished: Path) -> None:
        self.folder, self.finished = folder, finished

    def dojang(self, arguments: list[str]) -> str:
        if "codefu-7b-stage2" in arguments:  # its model, that of stage 1, is the tiny one here
            arguments = [*arguments, "rollout.max_tokens=64"]
        match arguments:
            case ["train", *_]:
                typed([*arguments, "model.device=cpu", "--dry-run"])
                if "--run-dir" in arguments:
                    shutil.copytree(self.finished / "run", value(arguments, "--run-dir"))
                return ""
            case ["eval", "--compare", *_]:
                return typed(arguments)
            case ["eval", *_]:
                return typed(small_evaluation(arguments))
            case ["data", "audit", *_] | ["plan", *_]:
                return typed([*arguments, "--problems", "1"])  # the last one counts
            case ["launch", "sagemaker", *_]:
                return typed([*arguments, "--dry-run"])
            case _:
                return typed(arguments)

    def aws(self, arguments: list[str]) -> str:
        if arguments[:2] == ["s3", "cp"] and arguments[2].endswith("model.tar.gz"):
            with tarfile.open(arguments[3], "w:gz") as packed:
                packed.add(self.finished / "model", ".")
        elif arguments[:2] == ["s3", "cp"]:
            shutil.copytree(self.finished / "run", arguments[3])
        return AWS.get(" ".join(arguments[:2]), "")

    def git(self, arguments: list[str]) -> str:
        [address] = (each for each in arguments if each.startswith("https://"))
        place = arguments[-1] if arguments[-1] != address else address.rpartition("/")[2]
        published_rows.clone(address, self.folder / place)
        return ""


def small_evaluation(arguments: list[str]) -> list[str]:
    """`dojang eval` of one problem with the tiny model, which has no room for examples."""
    shorter = ["dojang-tiny" if each in HUB else each for each in arguments]
    if "--shots" in shorter:
        shorter[shorter.index("--shots") + 1] = "0"
    folders = value(shorter, "--data").split(",")
    assert all("=" in each or Path(each).is_dir() for each in folders)
    shorter[shorter.index("--data") + 1] = folders[0]  # a judge for each takes a while to start
    return [*shorter, "--problems", "1", "--max-tokens", "4", "--device", "cpu"]


PREPARES = "AstraFlow, one agent"
"""The section whose data the next one uses, too."""


@pytest.mark.parametrize("title", [title for title in SECTIONS if title != PREPARES])
def test_every_block_runs(title: str, programs: dict[str, Answer], tmp_path: Path) -> None:
    script = SECTIONS[title]
    if title == "The account":
        shutil.copytree(PAGE.parents[1] / "docker", tmp_path / "here" / "docker")
    else:
        script = SETUP + (SECTIONS[PREPARES] if "AstraFlow" in title else "") + script
    run(script, tmp_path / "here", programs)


def test_every_command_is_known() -> None:
    """What is only recorded here is a short list, all of it used."""
    words = {line.split()[0] for script in SECTIONS.values() for line in script.splitlines() if line.split()}
    assert words >= NOT_HERE.keys() - {"grafana"}
    assert "make" not in words
