"""Commands that are printed to look into a job."""

import json
import shlex

from dojang.cluster.sagemaker.inspect_job import inspecting

NAME = "dojang-gsm8k-20261101"


def lines(mlflow: str = "", *, remote_debug: bool = True, exporter: int = 0) -> dict[str, list[str]]:
    """Arguments of each command, by what it is for."""
    text = inspecting(NAME, "us-west-2", remote_debug=remote_debug, mlflow=mlflow, exporter=exporter)
    return {line.partition(":")[0]: shlex.split(line.partition(":")[2], comments=True) for line in text.splitlines()}


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def test_pages_on_the_head_are_forwarded_by_ssm() -> None:
    found = lines()
    assert option(found["shell"], "--target") == f"sagemaker-training-job:{NAME}_algo-1"
    for page, port in (("Ray dashboard", "8265"), ("Prometheus", "9090"), ("Grafana", "3000")):
        assert found[page][:3] == ["aws", "ssm", "start-session"]
        assert option(found[page], "--document-name") == "AWS-StartPortForwardingSession"
        told = json.loads(option(found[page], "--parameters"))
        assert told == {"portNumber": [port], "localPortNumber": [port]}
        assert option(found[page], "--region") == "us-west-2"


def test_the_runs_own_metrics_are_forwarded_if_there_are_any() -> None:
    assert "metrics" not in lines()
    assert json.loads(option(lines(exporter=9464)["metrics"], "--parameters"))["portNumber"] == ["9464"]


def test_without_remote_debugging_only_the_log_is_there() -> None:
    assert list(lines(remote_debug=False)) == ["read its log"]
    assert option(lines()["read its log"], "--log-stream-name-prefix") == f"{NAME}/"


def test_the_copy_in_s3_is_looked_at() -> None:
    text = inspecting(NAME, "us-west-2", remote_debug=False, mlflow="", exporter=0, checkpoints="s3://bucket/jobs/1/")
    (line,) = (line for line in text.splitlines() if line.startswith("look at it:"))
    assert line.split() == ["look", "at", "it:", "AWS_REGION=us-west-2", "dojang", "view", "s3://bucket/jobs/1/run"]


def test_mlflow_of_sagemaker_is_opened_by_its_arn() -> None:
    arn = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/team"
    found = lines(arn, remote_debug=False)["MLflow"]
    assert found[2] == "create-presigned-mlflow-tracking-server-url"
    assert (option(found, "--tracking-server-name"), option(found, "--region")) == ("team", "us-east-1")
    app = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-1"
    assert option(lines(app, remote_debug=False)["MLflow"], "--arn") == app


def test_a_server_in_the_network_of_the_job_is_reached_through_it() -> None:
    found = lines("http://me:secret@mlflow.internal:5001")["MLflow"]
    told = json.loads(option(found, "--parameters"))
    assert told == {"host": ["mlflow.internal"], "portNumber": ["5001"], "localPortNumber": ["5000"]}
    assert "secret" not in " ".join(found)
