"""`dojang explain`: prints the diagnosis of a run."""

import sys

from dojang.core.run_files import RunFiles
from dojang.diagnosis.diagnose import diagnose
from dojang.diagnosis.record import RunRecord
from dojang.diagnosis.report import as_json, full_report

__all__ = ["explain"]


def explain(run_dir: str, *, json: bool) -> None:
    """Prints the diagnosis; raises RunDirError if the directory has no run."""
    found = diagnose(RunRecord.read(RunFiles(run_dir)))
    sys.stdout.write((as_json(found) if json else full_report(found, run_dir)) + "\n")
