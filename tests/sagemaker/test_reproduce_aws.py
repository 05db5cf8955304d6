"""docs/reproduce.md: the sections that use AWS, against moto: IAM, ECR, S3, jobs, and the clean-up."""

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from aws_command import Aws
from cloud import ACCOUNT
from typer.testing import CliRunner

import published_rows
from doc_shell import Answer, blocks, run
from dojang.commands import app
from dojang.models import resolve

pytest.importorskip("moto.sagemaker.models", reason="moto is not installed here; make test-sagemaker has it")
pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproduce.md"
BUCKET = f"dojang-{ACCOUNT}"
ELSEWHERE = ("plan", "train", "eval", "export", "audit", "dashboards", "ray-cluster")
"""Commands of dojang that tests/docs runs."""


@pytest.fixture
def here(amazon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Answer]:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    httpx.post(f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset")  # an empty account
    published_rows.hub(folder)
    shutil.copytree(PAGE.parents[1] / "docker", folder / "docker")
    aws = Aws(amazon)

    def dojang(arguments: list[str]) -> str:
        if any(each in ELSEWHERE for each in arguments[:2]):
            return ""
        if "codefu-7b-stage2" in arguments:  # its model, that of stage 1, is the tiny one here
            arguments = [*arguments, "rollout.max_tokens=64", "rollout.max_model_len=null"]
        found = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert found.exit_code == 0, found.output
        if arguments[:2] == ["launch", "follow"]:
            leave_results(amazon, arguments[2], tmp_path)
        return ""

    def git(arguments: list[str]) -> str:
        [address] = (each for each in arguments if each.startswith("https://"))
        place = arguments[-1] if arguments[-1] != address else address.rpartition("/")[2]
        published_rows.clone(address, folder / place)
        return ""

    silent: dict[str, Answer] = dict.fromkeys(("pip", "docker", "prometheus", "grafana"), lambda arguments: "")
    return {"dojang": dojang, "aws": aws, "git": git, **silent}


def leave_results(amazon: Any, job: str, place: Path) -> None:
    """A finished job's model and run, where SageMaker would have put them."""
    told = amazon.client("sagemaker").describe_training_job(TrainingJobName=job)
    packed = place / "model.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(resolve("dojang-tiny"), ".")
    bucket, _, key = told["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").partition("/")
    amazon.client("s3").upload_file(str(packed), bucket, key)
    kept = told["CheckpointConfig"]["S3Uri"].removeprefix(f"s3://{BUCKET}/")
    amazon.client("s3").put_object(Bucket=BUCKET, Key=f"{kept}/run/summary.json", Body=b"{}")


def test_the_aws_sections_run_against_moto(here: dict[str, Answer], amazon: Any, tmp_path: Path) -> None:
    sections = blocks(PAGE)
    account = sections["The account"]
    post, _, clean_up = sections["CodeFu, the post"].partition("aws sagemaker stop-training-job")
    script = [account, post, sections["CodeFu, both stages"], sections["GSM8K with QLoRA"]]
    run("\n".join([*script, f"aws sagemaker stop-training-job{clean_up}"]), tmp_path / "here", here)
    jobs = amazon.client("sagemaker").list_training_jobs()["TrainingJobSummaries"]
    names = sorted(job["TrainingJobName"] for job in jobs)
    expected = ("codefu-7b-post", "codefu-7b-stage1", "codefu-7b-stage2", "gsm8k-qwen2-5")
    assert len(names) == len(expected), names
    assert all(name.startswith(f"dojang-{begins}") for name, begins in zip(names, expected, strict=True)), names
    # Nothing is left but the jobs' own records.
    left = [bucket["Name"] for bucket in amazon.client("s3").list_buckets()["Buckets"]]
    assert BUCKET not in left
    assert amazon.client("ecr").describe_repositories()["repositories"] == []
    assert amazon.client("iam").list_roles()["Roles"] == []
    assert amazon.client("iam").list_groups()["Groups"] == []


def test_policies_allow_what_jobs_and_people_do(here: dict[str, Answer], amazon: Any, tmp_path: Path) -> None:
    run(blocks(PAGE)["The account"], tmp_path / "here", here)
    iam = amazon.client("iam")
    role = iam.get_role(RoleName="dojang-job")["Role"]
    assert role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    job = iam.get_role_policy(RoleName="dojang-job", PolicyName="job")["PolicyDocument"]
    people = iam.get_group_policy(GroupName="dojang", PolicyName="launch")["PolicyDocument"]
    for policy, needed in ((job, "ssmmessages:OpenDataChannel"), (people, "sagemaker:CreateTrainingJob")):
        assert needed in json.dumps(policy)
        for statement in policy["Statement"]:
            everything = statement["Resource"] == "*"
            assert not everything or not any("s3:" in action for action in statement["Action"])
