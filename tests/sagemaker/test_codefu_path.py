"""CodeFu from AWS's published rows to the model, as a user goes it: plan, launch, the job's containers, the result.

Amazon is played by moto. The containers are three hosts in network namespaces, each with a /opt/ml of its own and the
command of the request, with Ray over the network and sequence parallelism 2. The recipe is the post's, shrunk: a tiny
model that writes Python, few and short answers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cloud import BUCKET, REGION, ROLE, uploaded
from transformers import AutoModelForCausalLM, AutoTokenizer

from dojang.core.run_dir import RunDir
from dojang.data.tiny_programs import TinyProgramsConfig
from network_hosts import NEEDS_HOSTS, Host, Lab, labs, no_leftovers

pytest.importorskip("moto", reason="moto is not installed here; make test-sagemaker has it")
pytestmark = [*NEEDS_HOSTS, pytest.mark.slow]

MUCH = 900.0
HOSTS = 3
SMALL = [
    *("model.name=dojang-tiny-code", "model.dtype=float32", "task.language=python3"),
    *("steps=2", "rollout.engine=torch", "rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.max_tokens=32"),
    *("rollout.max_model_len=null"),
    *("train.max_tokens_per_microbatch=512", "train.gradient_checkpointing=false", "train.offload=[]", "train.lr=3e-4"),
    *("eval.every=2", "eval.problems=4", "checkpoint.every=1"),
    # Each process takes a whole host, so the ranks of a sequence exchange heads over the network.
    *("train.sequence_parallel=2", "runtime.trainers=2", "runtime.engines=1", f"runtime.cpus={os.cpu_count()}"),
]
ENTER = 'mount -t tmpfs opt /opt && mkdir /opt/ml && mount --bind "$ML" /opt/ml && cd /opt/ml && exec "$@"'
"""As test_sm_container does it."""
TESTS = pa.struct([("input", pa.list_(pa.string())), ("output", pa.list_(pa.string()))])
TRUTH = pa.struct(
    [
        *(("cf_rating", pa.int64()), ("memory_limit_bytes", pa.int64()), ("name", pa.string())),
        *(("private_tests", TESTS), ("public_tests", TESTS)),
        ("time_limit", pa.struct([("nanos", pa.float64()), ("seconds", pa.float64())])),
    ]
)
LAYOUT = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", TRUTH), ("style", pa.string())])),
    ]
)
"""Columns and types of the two Parquet files that AWS published; they have no tier."""


def row(split: str, number: int) -> dict[str, Any]:
    problem = TinyProgramsConfig().load(split)[number]
    tests = problem.reference["private"]
    given, hidden = ({key: [each[key] for each in part] for key in ("input", "output")} for part in (tests[:1], tests))
    return {
        "data_source": "code_contests",
        "prompt": [{"role": "user", "content": f"<|im_start|>user\n{problem.messages[0].content}<|im_end|>\n"}],
        "ability": "coding-cp",
        "reward_model": {
            "style": "rule",
            "ground_truth": {
                "name": f"{number}_A. {problem.id}",
                "cf_rating": 800 if number % 4 else 1600,  # those are not of the tier easy
                "memory_limit_bytes": 256_000_000,
                "time_limit": {"seconds": 2.0, "nanos": 0.0},
                "public_tests": given,
                "private_tests": hidden,
            },
        },
    }


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A folder with rows in the published layout."""
    folder = tmp_path / "code_contests_easy"
    folder.mkdir()
    for split, count in (("train", 16), ("test", 8)):
        rows = pa.Table.from_pylist([row(split, number) for number in range(count)], schema=LAYOUT)
        pq.write_table(rows, folder / f"{split}.parquet")
    return folder


def dojang(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dojang", *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=MUCH)
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def lay_out(host: Host, channels: dict[str, dict[str, bytes]], hyperparameters: Any) -> None:
    """The /opt/ml that SageMaker gives a container; `Lab.describe` has written its resourceconfig.json."""
    for folder in ("model", "output/data", "checkpoints"):
        (host.root / folder).mkdir(parents=True, exist_ok=True)
    for channel, files in channels.items():
        for name, content in files.items():
            file = host.root / "input/data" / channel / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
    told = {
        "hyperparameters": hyperparameters,
        "inputdataconfig": {each: {"TrainingInputMode": "File"} for each in channels},
    }
    for name, content in told.items():
        (host.root / "input/config" / f"{name}.json").write_text(json.dumps(content))


def start(lab: Lab, arguments: list[str]) -> None:
    """The first process of every container."""
    for host in lab.hosts:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(host.root),
            "ML": str(host.root),
            "TRAINING_JOB_NAME": "job",
            "PYTHONPATH": "/opt/ml/input/data/code",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "PIP_NO_INDEX": "1",  # all it needs is there
        }
        host.run(lab.hosts_file, ["bash", "-c", ENTER, "_", "/bin/bash", *arguments], environment)


def test_from_the_published_rows_to_the_model(amazon: Any, published: Path, tmp_path: Path) -> None:
    recipe = ["codefu-7b-post", *SMALL]
    machines = ["--instance", "c7i.4xlarge", "--nodes", str(HOSTS)]
    planned = dojang("plan", *recipe, f"data.path={published}", *machines, "--json")
    assert json.loads(planned.stdout)["estimate"]["fits"] == "yes"

    asked = ["--role", ROLE, "--instance-type", "ml.c7i.4xlarge", "--instance-count", str(HOSTS)]
    asked += ["--bucket", BUCKET, "--region", REGION, "--input", f"data={published}", "--no-wait"]
    dojang("launch", "sagemaker", *recipe, *asked)
    client = amazon.client("sagemaker")
    (job,) = client.list_training_jobs(NameContains="codefu-7b-post")["TrainingJobSummaries"]
    request = client.describe_training_job(TrainingJobName=job["TrainingJobName"])
    assert request["ResourceConfig"]["InstanceCount"] == HOSTS
    places = {each["ChannelName"]: each["DataSource"]["S3DataSource"]["S3Uri"] for each in request["InputDataConfig"]}
    channels = {
        channel: {name or place.rpartition("/")[2]: content for name, content in uploaded(amazon, place).items()}
        for channel, place in places.items()
    }
    assert {"train.parquet", "test.parquet"} <= channels["data"].keys()

    with labs(tmp_path) as make_lab:
        lab = make_lab(HOSTS)
        lab.describe({"homogeneousCluster": list(range(1, HOSTS + 1))})
        for host in lab.hosts:
            lay_out(host, channels, request["HyperParameters"])
        start(lab, request["AlgorithmSpecification"]["ContainerArguments"])
        assert [host.ends(MUCH) for host in lab.hosts] == [0] * HOSTS
        assert not any(host.failure.exists() for host in lab.hosts)
        no_leftovers(lab)
    head = lab.hosts[0].root
    summary = json.loads((head / "output/data/summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    run = RunDir(head / "checkpoints/run")
    assert "sequence_parallel: 2" in run.config.read_text()
    trained = [
        each for path in sorted((run.path / "rollouts").rglob("*.parquet")) for each in pq.read_table(path).to_pylist()
    ]
    assert trained
    assert not any(each["outcome"] == "judge_error" for each in trained)
    model = AutoModelForCausalLM.from_pretrained(head / "model")
    prompt = AutoTokenizer.from_pretrained(head / "model")("Read k. Print k plus 95.", return_tensors="pt")
    assert model(**prompt).logits.isfinite().all()


def test_the_rows_are_laid_out_as_published(shared_data: Path) -> None:
    for split in ("train", "test"):
        assert pq.read_schema(shared_data / "code_contests_easy" / f"{split}.parquet").equals(
            LAYOUT, check_metadata=False
        )
