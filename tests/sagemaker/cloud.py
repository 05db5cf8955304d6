"""What the tests of jobs share: names, and a look into S3."""

import re
from contextlib import suppress
from typing import Any

from dojang.cluster.sagemaker.follow import GROUP

BUCKET = "dojang-jobs"
REGION = "us-east-1"
ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/Trainer"


def uploaded(session: Any, place: str) -> dict[str, bytes]:
    """Files below a place in S3, by their names there."""
    found = re.fullmatch(r"s3://([^/]+)/(.*)", place)
    assert found
    client = session.client("s3")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=found[1], Prefix=found[2])
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    return {
        key.removeprefix(found[2]).lstrip("/"): client.get_object(Bucket=found[1], Key=key)["Body"].read()
        for key in keys
    }


def log_group(session: Any) -> Any:
    """A client of CloudWatch Logs; the group that jobs print to is there, made by this test or an earlier one."""
    logs = session.client("logs")
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_group(logGroupName=GROUP)
    return logs
