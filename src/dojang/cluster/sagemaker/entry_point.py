"""Entry point of a SageMaker container: trains or resumes, and exports the model. Runs after all hosts have joined.

    /opt/ml/input/data/dojang     the recipe (cluster/sagemaker/payload.py)
    /opt/ml/checkpoints/run       the run directory; SageMaker copies it to S3 while it grows, and back at the start
    /opt/ml/model                 the best checkpoint, to be packed as model.tar.gz
    /opt/ml/output/data           metrics and summary, to be packed as output.tar.gz
    /opt/ml/output/failure        reason of a failure

Only the head's container runs this. SAGEMAKER_BASE_DIR replaces /opt/ml.
"""

import io
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from dojang.cluster.sagemaker.payload import ROOT, load
from dojang.core.errors import DojangError, Interrupted
from dojang.core.run_dir import RunDir
from dojang.planning.checkpointed_layers import resolve_for_this_machine
from dojang.runs import training
from dojang.runs.export import export

__all__ = ["run"]

_MAX_FAILURE_CHARS = 1024
"""Characters of a failure that SageMaker shows."""


def run(overrides: Sequence[str]) -> None:
    """Trains the job's recipe with further overrides."""
    root = Path(os.environ.get("SAGEMAKER_BASE_DIR") or ROOT)
    try:
        directory = _train(root, overrides)
        _export_results(directory, root)
    except Interrupted:  # a stopped or preempted job resumes from its checkpoint
        raise
    except DojangError as error:
        _record(root, str(error))
        raise
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        _record(root, f"{type(error).__name__}: {error}\n{where}")
        raise


def _train(root: Path, overrides: Sequence[str]) -> RunDir:
    payload = load(root)
    directory = RunDir(root / "checkpoints" / "run")
    if lost := directory.drop_fragments():
        sys.stdout.write(f"removed incomplete checkpoints, whose copy to S3 was cut: {', '.join(lost)}\n")
    wanted = [*payload.overrides, *payload.channel_overrides(root), *overrides]
    training.run(payload.recipe, wanted, directory.path, resume=directory.run.exists(), fit=resolve_for_this_machine)
    return directory


def _export_results(directory: RunDir, root: Path) -> None:
    """Copies the model and the metrics to the directories that SageMaker uploads."""
    results = root / "output" / "data"
    results.mkdir(parents=True, exist_ok=True)
    for path in (directory.summary, directory.metrics, directory.config, directory.chart):
        if path.exists():
            shutil.copy(path, results)
    found = directory.checkpoint_names()
    if not found:
        return
    aside = root / "model" / ".exported"  # inside: /opt/ml/model may be a separate disk
    shutil.rmtree(aside, ignore_errors=True)
    which = "best" if "best" in found else "last"
    with redirect_stdout(io.StringIO()):  # the folder it prints is temporary
        export(directory.path, aside, precision="bfloat16", which=which)
    for path in aside.iterdir():
        os.replace(path, root / "model" / path.name)
    aside.rmdir()
    sys.stdout.write(f"{found[which].name} is the job's model\n")


def _record(root: Path, why: str) -> None:
    """Writes SageMaker's failure file, unless an earlier reason is there."""
    failure = root / "output" / "failure"
    failure.parent.mkdir(parents=True, exist_ok=True)
    if not failure.exists() or not failure.stat().st_size:
        failure.write_text(why[:_MAX_FAILURE_CHARS])
