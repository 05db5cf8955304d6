"""`dojang report`: a run as one HTML file that needs nothing else."""

import time
from pathlib import Path

from dojang import __version__
from dojang.core.errors import RunDirError
from dojang.core.run_dir import write_atomic
from dojang.diagnosis.diagnose import diagnose
from dojang.diagnosis.record import RunRecord
from dojang.viewer import report_data, report_page
from dojang.viewer.records import RunRecords

__all__ = ["REPORT", "write_report"]

REPORT = "report.html"


def write_report(run: Path | str, output: Path | None = None) -> Path:
    """Writes the report of a run, by default to report.html in its directory, or for a run in S3 in the current one.
    Returns its path. Raises RunDirError if there is no run, or the file cannot be written."""
    records = RunRecords(run)
    path = output or Path("" if records.files.is_remote else records.path) / REPORT
    text = _report(records)
    try:
        if path.exists() and not path.is_file():  # a rename would replace a device, or fail on a directory
            raise RunDirError(f"--output {path} is a directory or a device; give the name of a file, such as {REPORT}")
        write_atomic(path, text.encode())
    except OSError as error:
        raise RunDirError(f"cannot write {path}: {error.strerror}; choose another file (--output)") from error
    return path


def _report(records: RunRecords) -> str:
    files = records.files
    diagnosis = diagnose(RunRecord.read(files))
    charts = report_data.charts(files)
    settings, note = report_data.settings(records)
    recipe = records.run.get("recipe")
    facts = [f"recipe {recipe}"] if recipe else []
    facts += [diagnosis.status, f"written {time.strftime('%Y-%m-%d %H:%M %Z')} by dojang {__version__}"]
    sections = [
        report_page.diagnosis_section(diagnosis),
        report_page.charts_section(charts),
        report_page.evaluations_table(report_data.evaluations(records)),
        report_page.samples_section(report_data.samples(records)),
        report_page.data_table(
            "Settings that differ from the recipe", ("Setting", "Recipe", "Run"), settings, note=note
        ),
        report_page.data_table(
            "Environment", ("Name", "Value"), report_data.environment(files), empty="Not recorded in this run."
        ),
    ]
    return report_page.page(files.name, ", ".join(facts), sections, charts)
