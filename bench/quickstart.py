"""What the quickstart teaches, for several seeds: held-out accuracy after training beside before it.

    python bench/quickstart.py --seeds 4 rollout.engine.quantization=fp8

Settings after the options go to the runs.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import Row, arguments, report


def play(seed: int, folder: str, settings: list[str]) -> Row:
    directory = Path(folder) / f"seed-{seed}"
    command = [sys.executable, "-m", "dojang", "train", "quickstart", f"seed={seed}", "--run-dir", str(directory)]
    subprocess.run([*command, *settings], check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((directory / "summary.json").read_text())
    before, after = summary["eval"]["before"], summary["eval"]["after"]
    return Row(
        f"seed {seed}",
        "held-out accuracy after",
        "before",
        after,
        before,
        "share",
        after / before if before else None,
        f"{summary['steps']} steps, {summary['seconds']:.0f} s",
    )


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [play(seed, folder, options.settings) for seed in range(options.seeds)]
    report("quickstart", rows, options.json)


if __name__ == "__main__":
    main()
