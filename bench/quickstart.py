"""What the quickstart teaches, for several seeds: held-out accuracy after training beside before it."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import Row, arguments, report


def play(seed: int, folder: str) -> Row:
    directory = Path(folder) / f"seed-{seed}"
    command = [sys.executable, "-m", "dojang", "train", "quickstart", f"seed={seed}", "--run-dir", str(directory)]
    subprocess.run(command, check=True, capture_output=True)
    summary = json.loads((directory / "summary.json").read_text())
    before, after = summary["eval"]["before"], summary["eval"]["after"]
    return Row(
        f"seed {seed}",
        "held-out accuracy after",
        "before",
        after,
        before,
        "share",
        after / before,
        f"{summary['steps']} steps, {summary['seconds']:.0f} s",
    )


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [play(seed, folder) for seed in range(options.seeds)]
    report("quickstart", rows, options.json)


if __name__ == "__main__":
    main()
