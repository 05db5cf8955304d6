"""Follows a job: prints its status changes and the logs of its containers.

It does not use the SDK's own log function: that shows nothing before every host has logged something, and uses the
default credentials instead of the session's.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from dojang.core.errors import DojangError, Interrupted

__all__ = ["follow", "hints"]

GROUP = "/aws/sagemaker/TrainingJobs"
ENDED = ("Completed", "Failed", "Stopped")
EMPTY_POLLS = 3
"""Number of polls without new log lines after the job's end: the last lines may arrive late."""
INTERRUPTED = 130


def follow(session: Any, name: str, *, poll: float = 5.0, log: Callable[[str], None] | None = None) -> int:
    """Prints status and logs until the job ends. Returns 130 after Ctrl-C, which leaves the job running."""
    log = log or _print
    region = session.region_name
    try:
        _follow(session, name, poll, log)
    except KeyboardInterrupt:
        log(f"\n{name} is still running, and still billed.\n{hints(name, region)}")
        return INTERRUPTED
    return 0


def hints(name: str, region: str) -> str:
    """Commands to follow and to stop a job."""
    return (
        f"follow it:     dojang launch follow {name} --region {region}\n"
        f"stop it:       aws sagemaker stop-training-job --training-job-name {name} --region {region}"
    )


def _follow(session: Any, name: str, poll: float, log: Callable[[str], None]) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    client = session.client("sagemaker")
    logs = _Logs(session.client("logs"), name)
    seen, unreachable = 0, False
    while True:
        try:
            job = client.describe_training_job(TrainingJobName=name)
        except (BotoCoreError, ClientError) as error:
            if not _is_transient(error):
                raise DojangError(f"cannot describe job {name}: {error}") from None
            if not unreachable:
                log(f"AWS does not answer ({error}); retrying")
            unreachable = True
            time.sleep(poll)
            continue
        unreachable = False
        for change in (job.get("SecondaryStatusTransitions") or [])[seen:]:
            seen += 1
            log(f"{change['Status']}: {change.get('StatusMessage', '')}".rstrip(": "))
        logs.print_new(log)
        if job["TrainingJobStatus"] in ENDED:
            empty = 0
            while empty < EMPTY_POLLS:
                time.sleep(poll)
                empty = 0 if logs.print_new(log) else empty + 1
            _report_end(job, log)
            return
        time.sleep(poll)


def _is_transient(error: Exception) -> bool:
    """Reports whether an error may pass: no network, throttling, or a server error at AWS."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    if not isinstance(error, ClientError):
        return isinstance(error, ConnectionError | HTTPClientError)  # others do not pass, e.g. missing credentials
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return "Throttl" in error.response["Error"]["Code"] or status == 429 or status >= 500


def _report_end(job: dict[str, Any], log: Callable[[str], None]) -> None:
    name, status = job["TrainingJobName"], job["TrainingJobStatus"]
    saved = (job.get("CheckpointConfig") or {}).get("S3Uri", "")
    again = f"; launch it again with --checkpoints {saved} to resume" if saved else ""
    if status == "Failed":
        raise DojangError(f"{name} failed: {job.get('FailureReason') or 'SageMaker gives no reason'}{again}")
    if status == "Stopped":
        raise Interrupted(f"{name} was stopped ({job.get('SecondaryStatus', status)}){again}")
    log(f"{name}: {status}, {job.get('BillableTimeInSeconds', 0)} billable seconds")
    if model := (job.get("ModelArtifacts") or {}).get("S3ModelArtifacts"):
        log(f"model        {model}")
    if saved:
        log(f"checkpoints  {saved}")


class _Logs:
    """Log lines of a job's containers that were not printed yet."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._prefix = f"{name}/"
        self._read: dict[str, str] = {}
        self._refused = False

    def print_new(self, log: Callable[[str], None]) -> bool:
        """Prints new lines with their host; none if there is no log yet or reading it is refused. Returns whether it
        printed any."""
        from botocore.exceptions import BotoCoreError, ClientError

        printed = False
        if self._refused:
            return printed
        try:
            for stream in self._streams():
                for line in self._lines(stream):
                    log(line)
                    printed = True
        except (BotoCoreError, ClientError) as error:
            known = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
            if known != "ResourceNotFoundException" and not _is_transient(error):  # the log appears with the first line
                self._refused = True
                log(f"cannot read the job's log: {error}")
        return printed

    def _streams(self) -> list[str]:
        pages = self._client.get_paginator("describe_log_streams").paginate(
            logGroupName=GROUP, logStreamNamePrefix=self._prefix
        )
        return [stream["logStreamName"] for page in pages for stream in page["logStreams"]]

    def _lines(self, stream: str) -> Iterator[str]:
        host = stream.removeprefix(self._prefix).rsplit("-", 1)[0]
        while True:
            where = {"nextToken": self._read[stream]} if stream in self._read else {"startFromHead": True}
            page = self._client.get_log_events(logGroupName=GROUP, logStreamName=stream, **where)
            yield from (f"{host}  {event['message']}" for event in page["events"])
            same = self._read.get(stream) == page["nextForwardToken"]
            self._read[stream] = page["nextForwardToken"]
            if same or not page["events"]:
                return


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
