"""How long `dojang --help`, a configuration mistake and a dry run take, beside importing torch and transformers.

Frameworks that import everything before they look at their arguments take at least the baseline's time. A dry run
imports all that a run needs, reads its data and measures its prompts; what is left to do before a first step is to load
the model (`dojang bench train` has that).
"""

import statistics
import subprocess
import sys
import time

from machine import Row, arguments, report

CASES = {
    "dojang --help": [sys.executable, "-m", "dojang", "--help"],
    "a typo in a key": [sys.executable, "-m", "dojang", "train", "quickstart", "train.lrr=1"],
    "a dry run": [sys.executable, "-m", "dojang", "train", "quickstart", "--dry-run"],
}
BASELINE = [sys.executable, "-c", "import torch, transformers; transformers.AutoModelForCausalLM"]
ROUNDS = 5


def seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    options = arguments((__doc__ or "").partition("\n")[0]).parse_args()
    taken: dict[str, list[float]] = {case: [] for case in [*CASES, "baseline"]}
    for turn in range(ROUNDS + 1):
        for case, command in [*CASES.items(), ("baseline", BASELINE)]:
            spent = seconds(command)
            if turn:  # the first round fills the file cache
                taken[case].append(spent)
    baseline = statistics.median(taken["baseline"])
    rows = [
        Row(case, "dojang", "import torch and transformers", mine, baseline, "s", baseline / mine)
        for case in CASES
        for mine in [statistics.median(taken[case])]
    ]
    report("startup", rows, options.json)


if __name__ == "__main__":
    main()
