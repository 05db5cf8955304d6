"""Prints commands to inspect a running job: its log, its containers, and the web pages on its head."""

import shlex
from collections.abc import Iterator
from urllib.parse import urlsplit

__all__ = ["PAGES", "inspecting"]

PAGES = {"Ray dashboard": 8265, "Prometheus": 9090, "Grafana": 3000}
"""Ports on the head. Prometheus and Grafana need to be started there (docs/dashboards.md)."""


def inspecting(name: str, region: str, *, remote_debug: bool, mlflow: str, exporter: int, checkpoints: str = "") -> str:
    """Commands as lines of text. `mlflow` is the URI of the job's MLflow server, `checkpoints` the copy of the run in
    S3; empty if there is none. `exporter` is the port of the run's metrics (track.prometheus), or 0."""
    lines = [
        _line(
            "read its log",
            f"aws logs tail /aws/sagemaker/TrainingJobs --log-stream-name-prefix {name}/ --follow",
            region,
        )
    ]
    if checkpoints:  # the run directory is the folder `run` in it (entry_point.py)
        lines.append(f"look at it:    AWS_REGION={region} dojang view {shlex.quote(checkpoints.rstrip('/') + '/run')}")
    if mlflow.startswith("arn:"):
        lines.append(_line("MLflow", _presigned(mlflow), mlflow.split(":")[3]))
    if remote_debug:
        lines += _sessions(name, region, mlflow, exporter)
    return "\n".join(lines)


def _presigned(arn: str) -> str:
    """Command that prints a presigned URL of the MLflow server's web page."""
    kind, _, identity = arn.rpartition(":")[2].partition("/")
    if kind == "mlflow-app":
        return f"aws sagemaker create-presigned-mlflow-app-url --arn {arn}"
    return f"aws sagemaker create-presigned-mlflow-tracking-server-url --tracking-server-name {identity}"


def _sessions(name: str, region: str, mlflow: str, exporter: int) -> Iterator[str]:
    """AWS Systems Manager sessions with the head, which is algo-1 unless --head-group chose another."""
    start = f"aws ssm start-session --target sagemaker-training-job:{name}_algo-1"
    yield _line("shell", start, region)
    pages = PAGES | ({"metrics": exporter} if exporter else {})
    for page, port in pages.items():
        ports = f'{{"portNumber":["{port}"],"localPortNumber":["{port}"]}}'
        forward = f"{start} --document-name AWS-StartPortForwardingSession --parameters {shlex.quote(ports)}"
        yield _line(page, forward, region, f"http://localhost:{port}")
    address = urlsplit(mlflow)
    if address.scheme in ("http", "https") and address.hostname:
        port = address.port or (443 if address.scheme == "https" else 80)
        there = f'{{"host":["{address.hostname}"],"portNumber":["{port}"],"localPortNumber":["5000"]}}'
        document = "AWS-StartPortForwardingSessionToRemoteHost"
        forward = f"{start} --document-name {document} --parameters {shlex.quote(there)}"
        yield _line("MLflow", forward, region, f"{address.scheme}://localhost:5000")


def _line(what: str, command: str, region: str, page: str = "") -> str:
    return f"{what + ':':<15}{command} --region {region}" + (f"   # {page}" if page else "")
