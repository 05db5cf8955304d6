"""Following a job: its status as it changes, and what its containers print.

Not by the SDK's own means: those show nothing before every host has printed something, and ask in the name of the
default credentials, whatever the session's are.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from dojang.core.errors import DojangError, Interrupted

__all__ = ["follow", "hints"]

GROUP = "/aws/sagemaker/TrainingJobs"
ENDED = ("Completed", "Failed", "Stopped")
LATE = 3
"""How often to look in vain for last words of a job that has ended: they may come later than the word that it has."""
INTERRUPTED = 130


def follow(session: Any, name: str, *, poll: float = 5.0, say: Callable[[str], None] | None = None) -> int:
    """Tell what happens until the job has ended. 130 if Ctrl-C ended it before: the job goes on."""
    tell = say or _print
    region = session.region_name
    try:
        _tell(session, name, poll, tell)
    except KeyboardInterrupt:
        tell(f"\n{name} goes on, and costs what it costs.\n{hints(name, region)}")
        return INTERRUPTED
    return 0


def hints(name: str, region: str) -> str:
    """How to come back to a job, and how to end it."""
    return (
        f"follow it:     dojang launch follow {name} --region {region}\n"
        f"stop it:       aws sagemaker stop-training-job --training-job-name {name} --region {region}"
    )


def _tell(session: Any, name: str, poll: float, tell: Callable[[str], None]) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    client = session.client("sagemaker")
    logs = _Logs(session.client("logs"), name)
    told, away = 0, False
    while True:
        try:
            job = client.describe_training_job(TrainingJobName=name)
        except (BotoCoreError, ClientError) as error:
            if not _passes(error):
                raise DojangError(f"{name} cannot be looked at: {error}") from None
            if not away:
                tell(f"Amazon does not answer ({error}); trying on")
            away = True
            time.sleep(poll)
            continue
        away = False
        for change in (job.get("SecondaryStatusTransitions") or [])[told:]:
            told += 1
            tell(f"{change['Status']}: {change.get('StatusMessage', '')}".rstrip(": "))
        logs.tell_news(tell)
        if job["TrainingJobStatus"] in ENDED:
            looks = 0
            while looks < LATE:
                time.sleep(poll)
                looks = 0 if logs.tell_news(tell) else looks + 1
            _conclude(job, tell)
            return
        time.sleep(poll)


def _passes(error: Exception) -> bool:
    """No network for a while, too many questions, or trouble at Amazon: no reason to leave."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    if not isinstance(error, ClientError):
        return isinstance(error, ConnectionError | HTTPClientError)  # others are mistakes: no credentials, for one
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return "Throttl" in error.response["Error"]["Code"] or status == 429 or status >= 500


def _conclude(job: dict[str, Any], tell: Callable[[str], None]) -> None:
    name, status = job["TrainingJobName"], job["TrainingJobStatus"]
    saved = (job.get("CheckpointConfig") or {}).get("S3Uri", "")
    again = f"; launched again with --checkpoints {saved} it goes on from there" if saved else ""
    if status == "Failed":
        raise DojangError(f"{name} failed: {job.get('FailureReason') or 'SageMaker does not say why'}{again}")
    if status == "Stopped":
        raise Interrupted(f"{name} was stopped ({job.get('SecondaryStatus', status)}){again}")
    tell(f"{name}: {status}, {job.get('BillableTimeInSeconds', 0)} s to pay for")
    if model := (job.get("ModelArtifacts") or {}).get("S3ModelArtifacts"):
        tell(f"model        {model}")
    if saved:
        tell(f"checkpoints  {saved}")


class _Logs:
    """What the containers of a job print, as far as it was not told yet."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._prefix = f"{name}/"
        self._read: dict[str, str] = {}
        self._refused = False

    def tell_news(self, tell: Callable[[str], None]) -> bool:
        """Lines with the host they come from; none where there is no log yet, or it may not be read. Returns whether
        there were any."""
        from botocore.exceptions import BotoCoreError, ClientError

        told = False
        if self._refused:
            return told
        try:
            for stream in self._streams():
                for line in self._lines(stream):
                    tell(line)
                    told = True
        except (BotoCoreError, ClientError) as error:
            known = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
            if known != "ResourceNotFoundException" and not _passes(error):  # it is made when a container prints
                self._refused = True
                tell(f"the job's log cannot be read: {error}")
        return told

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
