"""What runs in a container of SageMaker's, once all hosts are there: train, or go on, and hand over the model.

    /opt/ml/input/data/dojang     the recipe (cluster/sagemaker/payload.py)
    /opt/ml/checkpoints/run       the run directory; SageMaker copies it to S3 while it grows, and back at the start
    /opt/ml/model                 the best checkpoint, to be packed as model.tar.gz
    /opt/ml/output/data           figures and summary, to be packed as output.tar.gz
    /opt/ml/output/failure        why a job has failed

Only the head's container runs this. SAGEMAKER_BASE_DIR names another place than /opt/ml.
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
from dojang.runs import training
from dojang.runs.export import export

__all__ = ["run"]

_SHOWN = 1024
"""Characters of a failure that SageMaker shows."""


def run(overrides: Sequence[str]) -> None:
    """Train what came with the job, with further overrides."""
    root = Path(os.environ.get("SAGEMAKER_BASE_DIR") or ROOT)
    try:
        directory = _train(root, overrides)
        _hand_over(directory, root)
    except Interrupted:  # a job that is stopped, or loses its machines, goes on from what was saved
        raise
    except DojangError as error:
        _record(root, str(error))
        raise
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        _record(root, f"{type(error).__name__}: {error}\n{where}")
        raise


def _train(root: Path, overrides: Sequence[str]) -> RunDir:
    shipment = load(root)
    directory = RunDir(root / "checkpoints" / "run")
    if lost := directory.drop_fragments():
        sys.stdout.write(f"not whole, since they were still being copied to S3: {', '.join(lost)}\n")
    wanted = [*shipment.overrides, *shipment.placed(root), *overrides]
    training.run(shipment.recipe, wanted, directory.path, resume=directory.run.exists())
    return directory


def _hand_over(directory: RunDir, root: Path) -> None:
    """The model and the figures, where SageMaker fetches them."""
    results = root / "output" / "data"
    results.mkdir(parents=True, exist_ok=True)
    for path in (directory.summary, directory.metrics, directory.config, directory.chart):
        if path.exists():
            shutil.copy(path, results)
    found = directory.checkpoint_names()
    if not found:
        return
    aside = root / "model" / ".exported"  # in it, not beside: /opt/ml/model may be a disk of its own
    shutil.rmtree(aside, ignore_errors=True)
    which = "best" if "best" in found else "last"
    with redirect_stdout(io.StringIO()):  # what it says of the folder is not true for long
        export(directory.path, aside, precision="bfloat16", which=which)
    for path in aside.iterdir():
        os.replace(path, root / "model" / path.name)
    aside.rmdir()
    sys.stdout.write(f"{found[which].name} is the job's model\n")


def _record(root: Path, why: str) -> None:
    """Where SageMaker looks for the reason; the first one is the one to tell."""
    failure = root / "output" / "failure"
    failure.parent.mkdir(parents=True, exist_ok=True)
    if not failure.exists() or not failure.stat().st_size:
        failure.write_text(why[:_SHOWN])
