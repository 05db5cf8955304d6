"""`dojang launch sagemaker` and `dojang launch follow`: what a person reads."""

import json
import sys
from collections.abc import Sequence

from dojang.cluster.sagemaker import sdk
from dojang.cluster.sagemaker.follow import follow, hints
from dojang.cluster.sagemaker.inspect_job import inspecting
from dojang.cluster.sagemaker.job import Job, Options, masked, plan

__all__ = ["attach", "show", "start"]


def show(recipe: str, overrides: Sequence[str], options: Options) -> None:
    """Print the request that would be sent, as JSON, without secrets."""
    job = plan(recipe, overrides, options)
    request = sdk.rehearse(job)
    told = request.get("Environment", {})
    request["Environment"] = {name: masked(name, value) for name, value in told.items()}
    sys.stdout.write(json.dumps(request, indent=2) + "\n")
    _tell_notes(job)
    sys.stderr.write(f"nothing was sent. In every container: {job.command}\n")


def start(recipe: str, overrides: Sequence[str], options: Options, *, wait: bool) -> int:
    """Submit the job and, if wanted, follow it; the exit code."""
    job = plan(recipe, overrides, options)
    _tell_notes(job)
    sys.stdout.write(f"{_machines(job)}, for {options.max_hours:g} hours at most; uploading\n")
    name = sdk.submit(job)
    session = sdk.connect(options.region, options.profile)
    looking = _inspecting(job, name, session.region_name)
    sys.stdout.write(f"job {name}\n{hints(name, session.region_name)}\n{looking}\n")
    return follow(session, name) if wait else 0


def attach(name: str, region: str, profile: str) -> int:
    """Follow a job that was submitted before; the exit code."""
    return follow(sdk.connect(region, profile), name)


def _tell_notes(job: Job) -> None:
    """On stderr: the request alone is on stdout."""
    sys.stderr.writelines(f"note: {each}\n" for each in job.notes)


def _inspecting(job: Job, name: str, region: str) -> str:
    track = job.config.track
    mlflow = track.mlflow_settings(job.environment)
    return inspecting(
        name,
        region,
        remote_debug=job.options.remote_debug,
        mlflow=mlflow.uri if mlflow else "",
        exporter=track.prometheus.port if track.prometheus else 0,
    )


def _machines(job: Job) -> str:
    return " and ".join(
        f"{group.count} x {group.type}" + (f" ({group.name})" if group.name else "") for group in job.groups
    )
