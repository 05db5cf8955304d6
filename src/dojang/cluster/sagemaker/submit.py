"""`dojang launch sagemaker` and `dojang launch follow`: submits a job, prints its request or follows it."""

import json
import sys
from collections.abc import Sequence

from dojang.cluster.sagemaker import sdk
from dojang.cluster.sagemaker.follow import follow, hints
from dojang.cluster.sagemaker.inspect_job import inspecting
from dojang.cluster.sagemaker.job import Job, plan
from dojang.cluster.sagemaker.options import Options
from dojang.core.mask_secrets import masked

__all__ = ["attach", "show", "start"]


def show(recipe: str, overrides: Sequence[str], options: Options) -> None:
    """Prints the request of a job as JSON, with secrets masked (--dry-run)."""
    job = plan(recipe, overrides, options)
    request = sdk.build_request(job)
    environment = request.get("Environment", {})
    request["Environment"] = {name: masked(name, value) for name, value in environment.items()}
    sys.stdout.write(json.dumps(request, indent=2) + "\n")
    _print_notes(job)
    sys.stderr.write(f"nothing was sent. Command of every container: {job.command}\n")


def start(recipe: str, overrides: Sequence[str], options: Options, *, wait: bool) -> int:
    """Submits the job, follows it if `wait`, and returns the exit code."""
    job = plan(recipe, overrides, options)
    _print_notes(job)
    sys.stdout.write(f"{_machines(job)}, for at most {options.max_hours:g} hours; uploading\n")
    name = sdk.submit(job)
    session = sdk.connect(options.region, options.profile)
    commands = _inspecting(job, name, session.region_name)
    sys.stdout.write(f"job {name}\n{hints(name, session.region_name)}\n{commands}\n")
    return follow(session, name) if wait else 0


def attach(name: str, region: str, profile: str) -> int:
    """Follows a submitted job and returns the exit code."""
    return follow(sdk.connect(region, profile), name)


def _print_notes(job: Job) -> None:
    """Prints the notes to stderr: stdout has only the request."""
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
        checkpoints=job.options.checkpoints,
    )


def _machines(job: Job) -> str:
    return " and ".join(
        f"{group.count} x {group.type}" + (f" ({group.name})" if group.name else "") for group in job.groups
    )
