"""Jobs through the real SDK, with moto in Amazon's place: what is sent, what is uploaded, and how a job is followed."""

import io
import itertools
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cloud import ACCOUNT, BUCKET, REGION, ROLE, log_group, uploaded

from dojang.cluster.sagemaker import sdk, submit
from dojang.cluster.sagemaker.follow import GROUP, follow
from dojang.cluster.sagemaker.job import plan
from dojang.cluster.sagemaker.options import Options
from dojang.core.errors import ConfigError, DojangError, Interrupted

moto = pytest.importorskip("moto.sagemaker.models", reason="moto is not installed here; make test-sagemaker has it")
pytestmark = pytest.mark.slow


@pytest.fixture
def sent(amazon: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests that reach Amazon, as they are sent: moto forgets some of what it is told."""
    requests: list[dict[str, Any]] = []
    connect = sdk.connect

    def listening(region: str, profile: str) -> Any:
        session = connect(region, profile)
        name = "provide-client-params.sagemaker.CreateTrainingJob"
        session.events.register(name, lambda params, **_: requests.append(dict(params)))
        return session

    monkeypatch.setattr(sdk, "connect", listening)
    return requests


def options(**more: Any) -> Options:
    given = {"role": ROLE, "instance_type": "ml.p4de.24xlarge", "bucket": BUCKET, "region": REGION, **more}
    return Options(**given)


def codefu(data: Path) -> tuple[str, list[str], Options]:
    """CodeFu's first stage on two nodes of A100s, and four that judge."""
    wanted = options(
        instance_type="",
        groups=["trainers=ml.p4de.24xlarge:2", "judges=ml.c7i.24xlarge:4"],
        image="123456789012.dkr.ecr.us-east-1.amazonaws.com/dojang:1",
        inputs=[f"data={data}"],
        checkpoints=f"s3://{BUCKET}/runs/codefu-7b-stage1",
        output=f"s3://{BUCKET}/models",
        max_hours=120,
        volume_gb=500,
        environment=["NCCL_TIMEOUT=1800", "HF_TOKEN=hf_secret"],
        tags=["project=codefu"],
        subnets=["subnet-1", "subnet-2"],
        security_groups=["sg-1"],
        remote_debug=True,
    )
    return (
        "codefu-7b-stage1",
        ["rollout.engine=vllm", "runtime.trainers=8", "runtime.engines=8"],
        wanted,
    )


def timeless(request: dict[str, Any]) -> dict[str, Any]:
    """Without the time that makes names differ."""
    text = re.sub(r"-20\d{12}", "-TIME", json.dumps(request))
    return json.loads(text)  # type: ignore[no-any-return]


def channel(path: str) -> dict[str, Any]:
    name = path.partition("/")[0]
    place = f"s3://{BUCKET}/dojang-codefu-7b-stage1/dojang-codefu-7b-stage1-TIME/input/{path}"
    source = {"S3DataType": "S3Prefix", "S3Uri": place, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, "InputMode": "File"}


def test_the_whole_request_of_codefus_first_stage(sent: list[dict[str, Any]], data: Path) -> None:
    recipe, overrides, wanted = codefu(data)
    job = plan(recipe, overrides, wanted, local={"RAY_GRAFANA_HOST": "http://grafana:3000", "HF_HOME": "/root"})
    name = sdk.submit(job)
    script = "/opt/ml/input/data/sm_drivers/sm_train.sh"
    (request,) = sent
    assert timeless(request) == {
        "TrainingJobName": "dojang-codefu-7b-stage1-TIME",
        "RoleArn": ROLE,
        "HyperParameters": {"recipe": "codefu-7b-stage1", "dojang": job.hyperparameters["dojang"]},
        "AlgorithmSpecification": {
            "TrainingImage": "123456789012.dkr.ecr.us-east-1.amazonaws.com/dojang:1",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["/bin/bash"],
            "ContainerArguments": ["-c", f"chmod +x {script} && {script}"],
        },
        "InputDataConfig": [channel(each) for each in ("dojang", "data", "code/code.tar.gz", "sm_drivers")],
        "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/models"},
        "ResourceConfig": {
            "VolumeSizeInGB": 500,
            "InstanceGroups": [
                {"InstanceGroupName": "trainers", "InstanceType": "ml.p4de.24xlarge", "InstanceCount": 2},
                {"InstanceGroupName": "judges", "InstanceType": "ml.c7i.24xlarge", "InstanceCount": 4},
            ],
        },
        "VpcConfig": {"Subnets": ["subnet-1", "subnet-2"], "SecurityGroupIds": ["sg-1"]},
        "StoppingCondition": {"MaxRuntimeInSeconds": 432000},
        "CheckpointConfig": {"S3Uri": f"s3://{BUCKET}/runs/codefu-7b-stage1", "LocalPath": "/opt/ml/checkpoints"},
        "Environment": {
            "RAY_GRAFANA_HOST": "http://grafana:3000",
            "NCCL_TIMEOUT": "1800",
            "HF_TOKEN": "hf_secret",
            "PYTHONPATH": "/opt/ml/input/data/code",
        },
        "Tags": [{"Key": "project", "Value": "codefu"}],
        "RemoteDebugConfig": {"EnableRemoteDebug": True},
    }
    assert name == request["TrainingJobName"]


def test_dry_run_shows_the_request_that_is_sent(sent: list[dict[str, Any]], data: Path) -> None:
    many = [
        codefu(data),
        (
            "quickstart",
            ["steps=2"],
            options(
                instance_type="ml.c7i.4xlarge",
                instance_count=3,
                checkpoints=f"s3://{BUCKET}/x",
                spot=True,
                max_wait=48,
                name="My_job!",
                inputs=[f"own={data / 'train' / '0.parquet'}", f"far=s3://{BUCKET}/some/data"],
            ),
        ),
    ]
    for recipe, overrides, wanted in many:
        job = plan(recipe, overrides, wanted, local={})
        sdk.submit(job)
        assert timeless(sdk.build_request(job)) == timeless(sent[-1])
    spot = sent[1]
    assert spot["EnableManagedSpotTraining"] is True
    assert spot["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400, "MaxWaitTimeInSeconds": 172800}
    assert spot["TrainingJobName"].startswith("My-job-20")
    pool = spot["ResourceConfig"]
    assert (pool["InstanceType"], pool["InstanceCount"]) == ("ml.c7i.4xlarge", 3)


def test_machines_can_be_kept_for_the_next_job(amazon: Any) -> None:
    request = sdk.build_request(plan("quickstart", [], options(keep_alive=30), local={}))
    assert request["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 1800
    image = request["AlgorithmSpecification"]["TrainingImage"]  # nobody has named one
    assert re.search(r"dkr\.ecr\.us-east-1\.amazonaws\.com/pytorch-training:2\.\d+-gpu-py3\d+$", image)


def test_code_recipe_and_requirements_are_uploaded(amazon: Any, data: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "rewards.py").write_text("def reward(): ...\n")
    (tmp_path / "own" / ".env").write_text("TOKEN=1\n")
    (tmp_path / "more.txt").write_text("sympy\n")
    recipe = tmp_path / "it's mine.yaml"
    recipe.write_text("model: {name: dojang-tiny}\ndata: {name: prepared, path: elsewhere}\n")
    wanted = options(inputs=[f"data={data}"], source=tmp_path / "own", requirements=tmp_path / "more.txt")
    name = sdk.submit(plan(str(recipe), ["model.chat_template_kwargs={note: it's}"], wanted, local={}))
    job = amazon.client("sagemaker").describe_training_job(TrainingJobName=name)
    places = {each["ChannelName"]: each["DataSource"]["S3DataSource"]["S3Uri"] for each in job["InputDataConfig"]}
    (packed,) = uploaded(amazon, places["code"]).values()
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path / "code", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    code = {str(path.relative_to(tmp_path / "code")): path for path in (tmp_path / "code").rglob("*")}
    needed = code["dojang-requirements.txt"].read_text().splitlines()
    assert {"dojang/commands/cli_launch.py", "dojang/recipes/quickstart.yaml", "rewards.py"} <= set(code)
    assert ".env" not in code
    assert any(name.endswith(".dist-info/entry_points.txt") for name in code)
    assert "sympy" in needed
    assert any(line.startswith("torch>=") for line in needed)
    assert set(uploaded(amazon, places["data"])) == {"train/0.parquet", "test/0.parquet"}
    told = uploaded(amazon, places["dojang"])
    assert told["it's mine.yaml"] == recipe.read_bytes()
    assert json.loads(told["job.json"]) == {
        "recipe": "it's mine.yaml",
        "overrides": ["model.chat_template_kwargs={note: it's}"],
        "channels": {"data.path": "data"},
    }
    script = uploaded(amazon, places["sm_drivers"])["sm_train.sh"].decode()
    inside = "python3 -m dojang launch entry-point runtime.name=ray runtime.trainers=4 runtime.engines=4"
    assert f"\nexec python3 -m dojang launch ray-cluster -- {inside}\n" in script
    assert "'" not in "".join(job["HyperParameters"].values())


def test_a_job_is_submitted_followed_and_described(amazon: Any, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = options(instance_count=2, checkpoints=f"s3://{BUCKET}/runs/a")
    assert submit.start("quickstart", [], wanted, wait=True) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 x ml.p4de.24xlarge, for at most 24 hours; uploading\njob dojang-quickstart-20")
    assert "aws sagemaker stop-training-job --training-job-name dojang-quickstart-20" in said
    assert "Completed" in said
    found = re.search(r"^job (\S+)$", said, re.MULTILINE)
    assert found
    job = amazon.client("sagemaker").describe_training_job(TrainingJobName=found[1])
    assert job["ResourceConfig"]["InstanceCount"] == 2
    assert job["CheckpointConfig"] == {"S3Uri": f"s3://{BUCKET}/runs/a", "LocalPath": "/opt/ml/checkpoints"}


def test_an_instance_type_that_is_none_is_found_before_anything_is_uploaded(amazon: Any) -> None:
    before = uploaded(amazon, f"s3://{BUCKET}/")
    with pytest.raises(ConfigError, match=r"no ml.p4df.24xlarge; did you mean ml.p4d(e)?.24xlarge"):
        sdk.submit(plan("quickstart", [], options(instance_type="ml.p4df.24xlarge"), local={}))
    assert uploaded(amazon, f"s3://{BUCKET}/") == before


def test_a_refused_job_is_an_error_without_traceback(amazon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "ResourceLimitExceeded", "Message": "none left"}}, "CreateTrainingJob")

    amazon.events.register("provide-client-params.sagemaker.CreateTrainingJob", refuse)
    monkeypatch.setattr(sdk, "connect", lambda *_: amazon)
    with pytest.raises(DojangError, match=r"nothing was launched: .*ResourceLimitExceeded.*none left"):
        sdk.submit(plan("quickstart", [], options(), local={}))


def test_without_credentials_there_is_a_way_to_get_some(
    amazon: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(DojangError, match="no AWS credentials found; log in"):
        sdk.submit(plan("quickstart", [], options(), local={}))


def test_a_dry_run_needs_neither_network_nor_credentials(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {
        "HOME": str(tmp_path),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    asked = ["--role", ROLE, "--instance-type", "ml.p4de.24xlarge", "--instance-count", "2", "--region", "eu-west-1"]
    asked += ["--env", "WANDB_API_KEY=abc", "--env", "MLFLOW_TRACKING_URI=https://me:pass@host:5000", "--dry-run"]
    command = [sys.executable, "-m", "dojang", "launch", "sagemaker", "quickstart", "steps=3", *asked]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr
    request = json.loads(result.stdout)
    assert request["OutputDataConfig"]["S3OutputPath"].startswith(f"s3://sagemaker-eu-west-1-{ACCOUNT}/")
    assert request["Environment"]["WANDB_API_KEY"] == "***"
    assert request["Environment"]["MLFLOW_TRACKING_URI"] == "https://***@host:5000"
    assert "exec python3 -m dojang launch ray-cluster" in result.stderr


def test_a_region_must_be_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="--region"):
        sdk.connect("", "")
    with pytest.raises(ConfigError, match="--profile nobody"):
        sdk.connect("", "nobody")


@pytest.fixture(autouse=True)
def no_endless_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(200))

    def sleep(_: float) -> None:
        assert next(turns, None) is not None, "the job is followed without end"

    monkeypatch.setattr("dojang.cluster.sagemaker.follow.time", SimpleNamespace(sleep=sleep))


@pytest.fixture
def job(amazon: Any) -> Callable[..., str]:
    """Makes jobs that are as far as a test wants them."""

    def make(**fields: Any) -> str:
        name = f"job-{time.monotonic_ns()}"
        amazon.client("sagemaker").create_training_job(
            TrainingJobName=name,
            AlgorithmSpecification={"TrainingInputMode": "File", "TrainingImage": "image"},
            RoleArn=ROLE,
            OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/models"},
            ResourceConfig={"InstanceType": "ml.c7i.large", "InstanceCount": 2, "VolumeSizeInGB": 30},
            StoppingCondition={"MaxRuntimeInSeconds": 60},
            CheckpointConfig={"S3Uri": f"s3://{BUCKET}/run"},
        )
        held = moto.sagemaker_backends[ACCOUNT][REGION].training_jobs[name]
        for field, value in fields.items():
            setattr(held, field, value)
        return name

    return make


def test_a_failed_job_says_why(amazon: Any, job: Callable[..., str]) -> None:
    name = job(training_job_status="Failed", failure_reason="AlgorithmError: rewards cannot teach")
    with pytest.raises(DojangError, match=f"{name} failed: AlgorithmError: rewards cannot teach; launch it again"):
        follow(amazon, name)


def test_a_failed_job_is_an_exit_code(job: Callable[..., str]) -> None:
    name = job(training_job_status="Failed", failure_reason="AlgorithmError: no data")
    command = [sys.executable, "-m", "dojang", "launch", "follow", name]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1
    assert "AlgorithmError: no data" in result.stderr


def test_a_stopped_job_is_none_that_finished(amazon: Any, job: Callable[..., str]) -> None:
    name = job(training_job_status="Stopped", secondary_status="MaxRuntimeExceeded")
    with pytest.raises(Interrupted, match=f"MaxRuntimeExceeded.*--checkpoints s3://{BUCKET}/run"):
        follow(amazon, name)


def test_following_an_unknown_job_is_refused(amazon: Any) -> None:
    with pytest.raises(DojangError, match="cannot describe job nobody-s-job"):
        follow(amazon, "nobody-s-job")


def test_without_credentials_there_is_nothing_to_wait_for(amazon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(DojangError, match="cannot describe job some-job: Unable to locate credentials"):
        follow(sdk.connect(REGION, ""), "some-job")


def test_logs_of_all_hosts_are_printed_once_until_the_end(amazon: Any, job: Callable[..., str]) -> None:
    name = job(training_job_status="InProgress")
    logs, said, group = log_group(amazon), list[str](), GROUP

    def write(host: str, *lines: str) -> None:
        events = [{"timestamp": next(clock), "message": line} for line in lines]  # moto sorts by it
        stream = f"{name}/{host}-1700000000"
        if host not in begun:
            logs.create_log_stream(logGroupName=group, logStreamName=stream)
            begun.add(host)
        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)

    begun, clock = set[str](), itertools.count(int(time.time() * 1000))
    write("algo-1", "step 1", "step 2")

    def say(line: str) -> None:
        said.append(line)
        if line.endswith("step 2"):  # meanwhile the second host begins, and the job ends
            write("algo-2", "here too")
            write("algo-1", "step 3")
            moto.sagemaker_backends[ACCOUNT][REGION].training_jobs[name].training_job_status = "Completed"

    assert follow(amazon, name, poll=0.01, log=say) == 0
    told = [line for line in said if line.startswith("algo-")]
    assert sorted(told) == ["algo-1  step 1", "algo-1  step 2", "algo-1  step 3", "algo-2  here too"]
    assert any(line.startswith("checkpoints  s3://") for line in said)


def test_late_log_lines_are_printed_and_throttled_requests_retried(
    amazon: Any, job: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import ClientError

    name, said = job(training_job_status="Completed"), list[str]()
    logs, sagemaker_client, asked = log_group(amazon), amazon.client("sagemaker"), list[str]()
    stream = {"logGroupName": GROUP, "logStreamName": f"{name}/algo-1-1700000000"}
    logs.create_log_stream(**stream)
    now = int(time.time() * 1000)
    logs.put_log_events(**stream, logEvents=[{"timestamp": now, "message": "step 1"}])

    def throttled(verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(**words: Any) -> Any:
            asked.append(verb)
            if asked.count(verb) == 1:
                raise ClientError({"Error": {"Code": "ThrottlingException", "Message": "Rate exceeded"}}, verb)
            return real(**words)

        return ask

    def sleep(_: float) -> None:
        if said and said[-1].endswith("step 1"):
            logs.put_log_events(**stream, logEvents=[{"timestamp": now + 1, "message": "last words"}])

    for client, verb in ((logs, "get_log_events"), (sagemaker_client, "describe_training_job")):
        monkeypatch.setattr(client, verb, throttled(verb, getattr(client, verb)))
    clients = {"logs": logs, "sagemaker": sagemaker_client}
    monkeypatch.setattr("dojang.cluster.sagemaker.follow.time", SimpleNamespace(sleep=sleep))
    session = SimpleNamespace(region_name=REGION, client=clients.__getitem__)
    assert follow(session, name, poll=0.01, log=said.append) == 0
    assert [line for line in said if line.startswith("algo-")] == ["algo-1  step 1", "algo-1  last words"]
    assert said[0].startswith("AWS does not answer")
    assert not any("cannot read" in line for line in said)


def test_ctrl_c_leaves_the_job_alone(amazon: Any, job: Callable[..., str]) -> None:
    name = job(training_job_status="InProgress")
    said = list[str]()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            raise KeyboardInterrupt

    assert follow(amazon, name, poll=0.01, log=say) == 130
    assert f"{name} is still running" in said[-1]
    assert f"dojang launch follow {name} --region {REGION}" in said[-1]
    assert moto.sagemaker_backends[ACCOUNT][REGION].training_jobs[name].training_job_status == "InProgress"
