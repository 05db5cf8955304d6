"""A container of a job: the SDK's own scripts, from where it put them, in a /opt/ml laid out like SageMaker's."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cloud import BUCKET, REGION, ROLE, uploaded

from dojang.cluster.sagemaker import sdk
from dojang.cluster.sagemaker.job import plan
from dojang.cluster.sagemaker.options import Options
from dojang.core.run_dir import RunDir

pytest.importorskip("moto", reason="moto is not installed here; make test-sagemaker has it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs a /opt/ml of its own: root"),
]

QUICK = [
    "rollout.prompts_per_step=2",
    "rollout.group_size=2",
    "rollout.max_tokens=4",
    "eval.problems=2",
    "eval.every=1000",
]
ENTER = 'mount -t tmpfs opt /opt && mkdir /opt/ml && mount --bind "$ML" /opt/ml && cd /opt/ml && exec "$@"'


@pytest.fixture
def ml(amazon: Any, tmp_path: Path) -> Path:
    """/opt/ml as a job of one host finds it, without Ray: its part is tested elsewhere."""
    wanted = Options(role=ROLE, instance_type="ml.c7i.large", bucket=BUCKET, region=REGION)
    job = plan("quickstart", [*QUICK, "steps=100000", "checkpoint.every=1"], wanted, local={})
    name = sdk.submit(replace(job, command="exec python3 -m dojang launch entry-point"))
    told = amazon.client("sagemaker").describe_training_job(TrainingJobName=name)
    ml = tmp_path / "ml"
    for folder in ("input/config", "model", "output/data", "checkpoints"):
        (ml / folder).mkdir(parents=True)
    channels = {each["ChannelName"]: each["DataSource"]["S3DataSource"]["S3Uri"] for each in told["InputDataConfig"]}
    for channel, place in channels.items():
        for path, content in uploaded(amazon, place).items():
            file = ml / "input" / "data" / channel / (path or place.rpartition("/")[2])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    group = {"instance_group_name": "homogeneousCluster", "instance_type": "ml.c7i.large", "hosts": ["algo-1"]}
    config = {
        "resourceconfig": {
            "current_host": "algo-1",
            "current_instance_type": "ml.c7i.large",
            "current_group_name": "homogeneousCluster",
            "hosts": ["algo-1"],
            "instance_groups": [group],
            "network_interface_name": "eth0",
        },
        "hyperparameters": told["HyperParameters"],
        "inputdataconfig": {channel: {"TrainingInputMode": "File"} for channel in channels},
    }
    for file, content in config.items():
        (ml / "input" / "config" / f"{file}.json").write_text(json.dumps(content))
    (ml / "entrypoint.json").write_text(json.dumps(told["AlgorithmSpecification"]["ContainerArguments"]))
    return ml


def container(ml: Path) -> subprocess.Popen[str]:
    """Its first process is what SageMaker starts; it can be told apart by being a child of `unshare`."""
    arguments = ["/bin/bash", *json.loads((ml / "entrypoint.json").read_text())]
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", ENTER, "_"]
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(ml.parent),
        "ML": str(ml),
        "TRAINING_JOB_NAME": "job",
        "PYTHONPATH": "/opt/ml/input/data/code",
        "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1",  # all it needs is there
    }
    return subprocess.Popen(
        [*command, *arguments], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_sigterm_saves_a_checkpoint_and_a_later_container_resumes(ml: Path) -> None:
    run = RunDir(ml / "checkpoints" / "run")
    first = container(ml)
    while first.poll() is None and 2 not in run.saved():
        time.sleep(0.1)
    inside = subprocess.run(["pgrep", "--parent", str(first.pid)], capture_output=True, text=True).stdout.split()
    assert inside, first.stdout and first.stdout.read()
    os.kill(int(inside[0]), signal.SIGTERM)
    said, _ = first.communicate(timeout=300)
    assert json.loads(run.summary.read_text())["status"] == "interrupted", said
    assert not (ml / "output" / "failure").exists()

    job = ml / "input" / "data" / "dojang" / "job.json"
    done = max(run.saved())
    job.write_text(job.read_text().replace("steps=100000", f"steps={done + 1}"))
    second = container(ml)
    said, _ = second.communicate(timeout=300)
    assert second.returncode == 0, said
    assert f"resuming after step {done}" in said
    assert (ml / "model" / "model.safetensors").is_file()
