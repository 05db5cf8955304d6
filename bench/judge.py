"""The judge beside the usual designs: programs per second, processor time per program, and wrong verdicts.

Every contestant judges the same batch in a fresh process of its own, one after another, round by round, so that a
busy machine slows all alike; of speeds the medians count. The baselines run every test. The judge ends a program at
its first time-out, since its reward is settled then, or at its first failure where the case says so. A contestant
first starts its pool and judges a few trivial programs, which also builds precompiled headers: that is paid once per
machine and not counted. Then the clock starts.

Processor time is that of the contestant's whole process tree, read from /proc before and after the batch: what each
process used, and what each got from the children it has buried. Reading it while the workers live means that
neither their start nor the way they are ended matters, and orphans are adopted by the contestant, so none is lost.

At k-fold oversubscription, busy loops run beside the contestant, so that k processes want every core. Time-outs that
depend on the wall clock then show as wrong verdicts. What is not measured here: programs that attack the judge.

With --workers, scaling is measured instead: n workers judge a batch of n times as many programs, and so do n
independent plain processes that compile with g++, or start python3, and run one test after another up to the first
time-out. Efficiency is the speed with n as a share of n times the speed with the first number given. The batch grows
with n because an endless program takes its time limit, however many workers wait for it.
"""

import argparse
import asyncio
import ctypes
import json
import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType

import judge_baselines as baselines
from dojang.programs import IoTest, Judgement, Limits, Stop, Submission, TestSuite
from dojang.types import Outcome
from judge_workload import FAMILIES, TESTS, Kind, Language, Program, Workload, mixed, workload
from machine import Row, arguments, machine, report

NAMES: Mapping[Language, str] = {"cpp17": "C++", "python3": "Python"}
PROGRAMS: Mapping[Language, int] = {"cpp17": 32, "python3": 60}
CORES = len(os.sched_getaffinity(0))

# A verdict can only turn wrong at a time limit, and a machine with k times the work takes k times as long. So the
# loaded runs take few programs: right ones that need real processor time, which may be cut short, and endless ones,
# which may escape. The others are there to keep the machinery honest.
LOADED_MIX: Mapping[Kind, int] = {"right": 6, "wrong": 2, "broken": 1, "endless": 1}

SPIN_LIMIT_S, SPIN_SHARE, SPIN_RUNS = 0.5, 0.8, 24
SPIN = """\
#include <ctime>
#include <iostream>
// spinner %d
int main() {
    double need;
    std::cin >> need;
    volatile unsigned long turns = 0;
    timespec used;
    do {
        for (int i = 0; i < 1000; i++) turns = turns + 1;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    } while (used.tv_sec + used.tv_nsec * 1e-9 < need);
    std::cout << "done" << std::endl;
}
"""
TRIVIAL: Mapping[Language, tuple[str, ...]] = {
    # The second one needs more of the library than most: a judge may keep a second set of headers for such.
    "cpp17": (
        "#include <bits/stdc++.h>\nint main() { std::cout << %d - %d; }\n",
        '#include <bits/stdc++.h>\nint main() { std::cout << %d - %d - std::regex_match("a", std::regex("b")); }\n',
    ),
    "python3": ("print(%d - %d)\n",),
}


# One contestant, in a process of its own -----------------------------------------------------------------------------


def contest(name: str, batch: Path, scratch: Path, isolation: str, workers: int) -> None:
    """Warm up, say so, wait for the start, judge the batch; told on standard output, a JSON object a line."""
    _die_as_a_family()
    work: Workload = pickle.loads(batch.read_bytes())
    if name.startswith("dojang"):
        asyncio.run(_dojang(name, work, scratch / f"cache of {name}", isolation, workers))
    elif name == "plain processes":
        with baselines.processes_pool(workers) as pool:
            _timed(baselines.plain(work.language, work.programs, scratch, pool))
    elif name == "sequential":
        for _ in baselines.sequential(work.language, _trivial(work.language), scratch):
            pass
        _timed(baselines.sequential(work.language, work.programs, scratch))
    else:
        with baselines.processes_pool(CORES) as pool:
            if name == "wall limit":
                _timed(baselines.wall_limit(work.language, work.programs, scratch, pool))
            else:
                for _ in baselines.codefu(work.language, _trivial(work.language), scratch, pool):
                    pass
                _timed(baselines.codefu(work.language, work.programs, scratch, pool))


async def _dojang(name: str, work: Workload, cache: Path, isolation: str, workers: int) -> None:
    from dojang.judge.pool import JudgePool

    pool = JudgePool(workers=workers, isolation=isolation, cache=cache)
    try:
        async for _ in _judged(pool.judge, work.language, _trivial(work.language), Stop.NEVER):
            pass
        stop = {"dojang": Stop.TIME_LIMIT, "dojang, first failure": Stop.FAILURE}.get(name, Stop.NEVER)
        mark = _start()
        layers = set()
        async for index, judgement in _judged(pool.judge, work.language, work.programs, stop):
            layers.add(judgement.isolation.value)
            if name == "dojang, test by test":
                for result in judgement.results:
                    _say(index=f"{index}/{result.test}", answer=_answer(result.outcome))
            else:
                _say(index=str(index), answer=_answer(judgement.outcome), detail=judgement.detail[:200])
        _finish(mark, "/".join(sorted(layers)))
    finally:
        await pool.close()


async def _judged(
    judge: Callable[[Submission], Awaitable[Judgement]], language: Language, programs: tuple[Program, ...], stop: Stop
) -> AsyncIterator[tuple[int, Judgement]]:
    async def one(index: int, program: Program) -> tuple[int, Judgement]:
        return index, await judge(Submission(language, program.source, program.test_suite, stop))

    for done in asyncio.as_completed([one(index, program) for index, program in enumerate(programs)]):
        yield await done


def _trivial(language: Language) -> tuple[Program, ...]:
    """For every core, one of each kind."""
    suite = TestSuite((IoTest("", "0"),))
    texts = list(TRIVIAL[language])
    if language == "cpp17":  # sets of headers recur: a judge may have them ready when it meets them again
        sets = ["".join(f"#include <{name}>\n" for name in family.headers.split()) for family in FAMILIES]
        texts += [each + "int main() { std::cout << %d - %d; }\n" for each in sets]
    sources = [text % (core, core) for text in texts for core in range(max(CORES, 2))]
    return tuple(Program(source, suite, Outcome.ACCEPTED) for source in sources)


def _answer(outcome: Outcome) -> str:
    """An outcome in the words of the baselines, so that all are held to the same truth."""
    known = {
        Outcome.ACCEPTED: "AC",
        Outcome.COMPILE_ERROR: "CE",
        Outcome.TIME_LIMIT: "TLE",
        Outcome.JUDGE_ERROR: "judge error",
    }
    return known.get(outcome, "WA")


def _timed(answers: Iterator[tuple[int | str, baselines.Answer]]) -> None:
    mark = _start()
    for index, answer in answers:
        _say(index=str(index), answer=answer)
    _finish(mark, "none")


def _start() -> tuple[float, float]:
    _say(ready=True)
    os.read(sys.stdin.fileno(), 1)
    used = tree_cpu_s(os.getpid())
    return time.perf_counter(), used


def _finish(mark: tuple[float, float], isolation: str) -> None:
    wall = time.perf_counter() - mark[0]
    _say(wall_s=wall, cpu_s=tree_cpu_s(os.getpid()) - mark[1], isolation=isolation)


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)


def tree_cpu_s(root: int) -> float:
    """Processor seconds of a process, its living descendants, and all that any of them has waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it may have ended since
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += ticks.get(pid, 0)
        waiting += children.get(pid, ())
    return total / os.sysconf("SC_CLK_TCK")


def _die_as_a_family() -> None:
    """Adopt orphans, and when the benchmark goes away take every process of this group along."""
    parent_death_signal, child_subreaper = 1, 36
    leader = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if os.getpid() == leader:
            os.killpg(leader, signal.SIGKILL)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    libc = ctypes.CDLL(None)
    libc.prctl(child_subreaper, 1)
    libc.prctl(parent_death_signal, signal.SIGTERM)


# The benchmark: who runs against what --------------------------------------------------------------------------------


@dataclass
class Run:
    """What one contestant made of one batch."""

    wall_s: float
    cpu_s: float | None = None
    """None if it had to be ended."""
    isolation: str = ""
    answers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Arena:
    """Where contestants meet."""

    scratch: Path
    limit_s: float
    isolation: str

    def run(self, name: str, work: Workload, load: int, workers: int = CORES) -> Run:
        """Let one contestant judge a batch on a machine with `load` times as much to do as it has cores."""
        batch = self.scratch / "batch"
        batch.write_bytes(pickle.dumps(work))
        command = [sys.executable, __file__, "--contestant", name, "--batch", str(batch)]
        command += ["--scratch", str(self.scratch), "--isolation", self.isolation, "--workers", str(workers)]
        # A process group, not a session: the kernel may share out processor time by session, and burners and
        # contestant must compete as equals.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        timer = threading.Timer(self.limit_s, os.killpg, (process.pid, signal.SIGKILL))
        run = Run(wall_s=self.limit_s)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            timer.start()
            if not process.stdout.readline():
                raise SystemExit(f"{name} failed before it began; its error is above")
            with burning((load - 1) * CORES):
                process.stdin.write(b"\n")
                process.stdin.flush()
                for line in process.stdout:
                    _record(run, json.loads(line))
            if process.wait() not in (0, -signal.SIGKILL):
                raise SystemExit(f"{name} failed; its error is above")
        finally:
            timer.cancel()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return run


def _record(run: Run, words: dict[str, object]) -> None:
    if "answer" in words:
        run.answers[str(words["index"])] = str(words["answer"])
    else:
        run.wall_s, run.cpu_s = float(str(words["wall_s"])), float(str(words["cpu_s"]))
        run.isolation = str(words["isolation"])


@contextmanager
def burning(processes: int) -> Iterator[None]:
    """So many busy loops beside the block. They end with it, and with this process, whatever becomes of either."""
    loop = "import ctypes; ctypes.CDLL(None).prctl(1, 9)\nwhile True: pass"
    burners: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            burners.append(subprocess.Popen([sys.executable, "-S", "-c", loop], stderr=subprocess.DEVNULL))
        if burners:
            time.sleep(1.0)  # until they are under way
        yield
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()


def wrong_verdicts(work: Workload, run: Run) -> int:
    """Programs whose reward would be wrong. No answer is a wrong one."""
    right = {
        Outcome.ACCEPTED: {"AC"},
        Outcome.WRONG: {"WA"},
        Outcome.TIME_LIMIT: {"TLE"},
        # To a judge that does not compile Python first, a syntax error is a crash.
        Outcome.COMPILE_ERROR: {"CE"} if work.language == "cpp17" else {"CE", "WA"},
    }
    return sum(run.answers.get(str(index)) not in right[program.truth] for index, program in enumerate(work.programs))


CASES = {"all tests run": "dojang", "stop at first failure": "dojang, first failure"}
BASELINES = ("codefu", "sequential")
Runs = dict[str, list[tuple[Workload, Run]]]


def mix_rows(
    arena: Arena, language: Language, load: int, options: argparse.Namespace, seeds: Iterator[int]
) -> list[Row]:
    """A mix of programs, by every contestant: speed and processor time at 1x, and wrong verdicts."""
    mix = mixed(language, options.programs or PROGRAMS[language]) if load == 1 else LOADED_MIX
    runs: Runs = {name: [] for name in [*BASELINES, *CASES.values()]}
    for turn in range(options.rounds if load == 1 else 1):
        work = workload(language, mix, next(seeds))
        for name, played in runs.items():
            run = arena.run(name, work, load)
            played.append((work, run))
            _progress(f"{NAMES[language]}, {load}x, round {turn + 1}", name, run, wrong_verdicts(work, run))
    rows = []
    for case, subject in CASES.items():
        for baseline in BASELINES:
            label = f"{NAMES[language]} mix, {case}" + (f", {load}x oversubscribed" if load > 1 else "")
            mine, theirs = runs[subject], runs[baseline]
            if load == 1:
                rows += _speed_rows(label, baseline, mine, theirs)
            rows.append(_wrong_row(label, baseline, mine, theirs))
    return rows


def _speed_rows(
    label: str, baseline: str, mine: list[tuple[Workload, Run]], theirs: list[tuple[Workload, Run]]
) -> list[Row]:
    programs = len(mine[0][0].programs)
    notes = f"{programs} programs x {TESTS} tests, isolation {mine[0][1].isolation}; we stop at the first time-out"
    for name, played in (("dojang", mine), (baseline, theirs)):
        if not all(run.cpu_s for _, run in played):
            notes += f"; {name} did not finish and was ended"
    fast, other = (statistics.median(len(run.answers) / run.wall_s for _, run in played) for played in (mine, theirs))
    rows = [Row(label, "dojang", baseline, fast, other, "programs/s", fast / other, notes)]
    if all(run.cpu_s for _, run in [*mine, *theirs]):
        used, other = (statistics.median((run.cpu_s or 0) / programs for _, run in played) for played in (mine, theirs))
        rows.append(Row(label, "dojang", baseline, used, other, "CPU s/program", other / used, notes))
    return rows


def _wrong_row(label: str, baseline: str, mine: list[tuple[Workload, Run]], theirs: list[tuple[Workload, Run]]) -> Row:
    ours, others = (sum(wrong_verdicts(work, run) for work, run in played) for played in (mine, theirs))
    judged = sum(len(work.programs) for work, _ in mine)
    return Row(label, "dojang", baseline, ours, others, "wrong verdicts", _fewer(ours, others), f"of {judged}")


def _fewer(mine: int, theirs: int) -> float | None:
    """How many times fewer; none where there is nothing to divide by."""
    return 1.0 if mine == theirs else theirs / mine if mine else None


def spin_row(arena: Arena, load: int, seeds: Iterator[int]) -> Row:
    """Runs that need most of their limit, and not more: how many does a wall limit cut short, how many do we?"""
    wrong = {"wall limit": 0, "dojang, test by test": 0}
    work = _spinners(next(seeds))
    for name in wrong:
        run = arena.run(name, work, load)
        wrong[name] = SPIN_RUNS - sum(answer == "AC" for answer in run.answers.values())
        _progress(f"false time-outs, {load}x", name, run, wrong[name])
    theirs, mine = wrong.values()
    notes = f"of {SPIN_RUNS} runs that need {SPIN_SHARE:.0%} of a limit of {SPIN_LIMIT_S} s"
    case = "false time-outs" + (f", {load}x oversubscribed" if load > 1 else "")
    return Row(case, "dojang", "wall limit", mine, theirs, "false time-outs", _fewer(mine, theirs), notes)


def _spinners(seed: int) -> Workload:
    """The runs, dealt out to a program for each core."""
    test = IoTest(f"{SPIN_SHARE * SPIN_LIMIT_S}\n", "done\n")
    limits = Limits(cpu_s=SPIN_LIMIT_S)
    programs = []
    for core in range(min(CORES, SPIN_RUNS)):
        suite = TestSuite((test,) * len(range(core, SPIN_RUNS, CORES)), limits)
        programs.append(Program(SPIN % (seed * CORES + core), suite, Outcome.ACCEPTED))
    return Workload("cpp17", tuple(programs))


def scaling_rows(
    arena: Arena, language: Language, numbers: list[int], per_worker: int, seeds: Iterator[int]
) -> list[Row]:
    """Speed with n workers beside n plain processes, and the efficiency of each beside that of the other."""
    speeds: dict[str, list[float]] = {"dojang": [], "plain processes": []}
    rows = []
    for workers in numbers:
        work = workload(language, mixed(language, per_worker * workers), next(seeds))
        notes = []
        for name, measured in speeds.items():
            run = arena.run(name, work, 1, workers)
            if run.cpu_s is None:
                raise SystemExit(f"{name} with {workers} workers was not done after {arena.limit_s:g} s; set --limit")
            wrong = wrong_verdicts(work, run)
            _progress(f"{NAMES[language]}, {workers} workers", name, run, wrong)
            measured.append(len(work.programs) / run.wall_s)
            notes.append(f"{name}: {run.cpu_s / run.wall_s:.1f} cores busy, {wrong} wrong")
        mine, theirs = (measured[-1] for measured in speeds.values())
        case = f"{NAMES[language]} mix, {workers} workers, {len(work.programs)} programs"
        rows.append(Row(case, "dojang", "plain processes", mine, theirs, "programs/s", mine / theirs, "; ".join(notes)))
        own, other = (measured[-1] / measured[0] * numbers[0] / workers for measured in speeds.values())
        rows.append(Row(case, "dojang", "plain processes", own, other, "efficiency", own / other))
    return rows


def _progress(case: str, name: str, run: Run, wrong: int) -> None:
    cpu = "was ended" if run.cpu_s is None else f"{run.cpu_s:.1f} s CPU"
    print(f"{case}: {name}: {run.wall_s:.1f} s, {cpu}, {wrong} wrong", file=sys.stderr, flush=True)


def _table(rows: list[Row]) -> None:
    print(f"judge on {machine()}")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        values = f"{row.value:8.3g} beside {row.baseline_value:8.3g} {row.unit:<15}"
        print(f"  {row.case:<52} {values} {row.baseline:<10} {ratio:>7}  {row.notes}")


def _options() -> argparse.Namespace:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, help="programs in a mix; 32 in C++ and 60 in Python if not given")
    parser.add_argument("--rounds", type=int, default=3, help="how often speeds are measured; the median counts")
    parser.add_argument("--oversubscription", default="1,4,8", help="how many processes want each core; 1 gives speeds")
    parser.add_argument("--language", choices=("cpp", "python", "all"), default="all")
    parser.add_argument("--workers", help="measure scaling instead, with these numbers of workers, such as 1,4,8,16")
    parser.add_argument("--programs-per-worker", type=int, default=32, help="size of a batch when measuring scaling")
    parser.add_argument("--isolation", default="auto", help="as the judge's own option")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a contestant is ended")
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = _options()
    if options.contestant:
        contest(options.contestant, options.batch, options.scratch, options.isolation, int(options.workers))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    languages: list[Language] = ["cpp17"] if options.language != "python" else []
    languages += ["python3"] if options.language != "cpp" else []
    loads = [int(load) for load in options.oversubscription.split(",")]
    seeds = count(1)  # every batch is new: nothing is answered from a cache
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="judge-bench-") as folder:
        arena = Arena(Path(folder), options.limit, options.isolation)
        if options.workers:
            numbers = [int(number) for number in options.workers.split(",")]
            for language in languages:
                rows += scaling_rows(arena, language, numbers, options.programs_per_worker, seeds)
            loads = []
        for load in loads:
            for language in languages:
                rows += mix_rows(arena, language, load, options, seeds)
            if "cpp17" in languages:
                rows.append(spin_row(arena, load, seeds))
    if options.json:
        report("judge", rows, True)
    else:
        _table(rows)


if __name__ == "__main__":
    main()
