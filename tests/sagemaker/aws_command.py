"""The `aws` command, as far as docs/reproduce.md uses it: any operation of botocore's models, and `aws s3 cp` and `rm`.

Arguments are checked against the service models of Amazon. Operations that moto does not have are checked in the same
way, and answered by `CANNED`.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CANNED", "Aws"]

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed here; make test-sagemaker has it")
jmespath = pytest.importorskip("jmespath")
validate = pytest.importorskip("botocore.validate")

CANNED = {
    ("service-quotas", "ListServiceQuotas"): {
        "Quotas": [{"QuotaName": "ml.p4de.24xlarge for training job usage", "QuotaCode": "L-12345678"}]
    },
    ("service-quotas", "RequestServiceQuotaIncrease"): {},
    ("sagemaker", "StopTrainingJob"): {},
    ("sagemaker", "CreateMlflowTrackingServer"): {},
    ("sagemaker", "CreatePresignedMlflowTrackingServerUrl"): {},
    ("sagemaker", "DeleteMlflowTrackingServer"): {},
    ("ssm", "StartSession"): {},
}
"""Answers of operations that moto lacks, or that need a plugin or a console."""


class Aws:
    """Runs commands against the session's endpoint."""

    def __init__(self, session: boto3.Session) -> None:
        self._session = session

    def __call__(self, arguments: list[str]) -> str:
        service, verb, *rest = arguments
        if service == "s3":
            self._s3(verb, rest)
            return ""
        if (service, verb) == ("ecr", "get-login-password"):  # of the command alone
            return "password"
        operation = "".join(part.capitalize() for part in verb.split("-"))
        given = _options(rest)
        query = given.pop("Query", "")
        given.pop("Output", "")
        client = self._session.client("s3" if service == "s3api" else service)
        operation = next(
            name for name in client.meta.service_model.operation_names if name.lower() == operation.lower()
        )
        shape = client.meta.service_model.operation_model(operation).input_shape
        wanted = {
            _member(name, shape): _value(value, shape.members[_member(name, shape)]) for name, value in given.items()
        }
        validate.validate_parameters(wanted, shape)
        if (service, operation) in CANNED:
            answer: Any = CANNED[service, operation]
        else:
            if operation == "ListTrainingJobs":  # moto counts before it looks at names, and sorts nothing
                del wanted["MaxResults"]
            method = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
            answer = getattr(client, method)(**wanted)
            if operation == "ListTrainingJobs":
                answer["TrainingJobSummaries"].reverse()
        found = jmespath.search(query, answer) if query else None
        return "\n".join(found) if isinstance(found, list) else str(found or "")

    def _s3(self, verb: str, rest: list[str]) -> None:
        [source, *target] = [each for each in rest if each != "--recursive"]
        bucket = self._session.resource("s3").Bucket(source.removeprefix("s3://").split("/")[0])
        key = source.removeprefix("s3://").partition("/")[2]
        found = list(bucket.objects.filter(Prefix=key))
        if verb == "rm":
            for each in found:
                each.delete()
            return
        assert verb == "cp"
        assert found, f"there is no {source}"
        for each in found:
            file = Path(target[0], each.key.removeprefix(key).lstrip("/")) if "--recursive" in rest else Path(target[0])
            file.parent.mkdir(parents=True, exist_ok=True)
            bucket.download_file(each.key, str(file))


def _options(rest: list[str]) -> dict[str, str]:
    """`--role-name X --force` as {"RoleName": "X", "Force": "true"}."""
    found: dict[str, str] = {}
    name = ""
    for each in rest:
        if each.startswith("--"):
            name = "".join(part.capitalize() for part in each[2:].split("-"))
            found[name] = "true"
        else:
            found[name] = each
    return found


def _member(name: str, shape: Any) -> str:
    """The parameter's own spelling, such as repositoryName."""
    return next(member for member in shape.members if member.lower() == name.lower())


def _value(text: str, shape: Any) -> Any:
    if text.startswith("file://"):
        text = Path(text.removeprefix("file://")).read_text()
        json.loads(text)
    match shape.type_name:
        case "boolean":
            return text == "true"
        case "integer" | "long":
            return int(text)
        case "double" | "float":
            return float(text)
        case "structure" | "list" | "map":
            return json.loads(text)
    return text
