"""The numerical tests pass with the instruction sets of other processors, and with several threads.

Other processors are not at hand, but most of their arithmetic is: torch, oneDNN, MKL and the compiler can each be
told to use older instructions than there are, and then add in another order. Tests marked `numerical` run in a process
of their own for each set.
"""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
FILES = ("engine/test_decoder.py", "engine/test_cpu_ops.py", "engine/test_sampler.py", "trainer/test_critic.py")
FILES += ("trainer/test_logprobs.py", "trainer/test_packing.py", "trainer/test_torch_trainer.py")

# Flags of /proc/cpuinfo that a set needs, and what the libraries and the compiler call it.
SETS = {
    "sse4": ("sse4_2", {"ATEN": "default", "ONEDNN": "SSE41", "MKL": "SSE4_2", "march": "x86-64-v2"}, 1),
    "avx2": ("avx2", {"ATEN": "avx2", "ONEDNN": "AVX2", "MKL": "AVX2", "march": "x86-64-v3"}, 3),
    "avx512": ("avx512vl", {"ATEN": "avx512", "ONEDNN": "AVX512_CORE", "MKL": "AVX512", "march": "x86-64-v4"}, 3),
}


def forced(name: str, folder: Path) -> dict[str, str]:
    """Environment variables that make a process use the set."""
    needs, called, threads = SETS[name]
    if platform.machine() != "x86_64":
        pytest.skip(f"{name} is for x86_64, and this is {platform.machine()}")
    if needs not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"this processor does not have {needs}")
    variables = {
        "ATEN_CPU_CAPABILITY": called["ATEN"],
        "ONEDNN_MAX_CPU_ISA": called["ONEDNN"],
        "MKL_ENABLE_INSTRUCTIONS": called["MKL"],
        "OMP_NUM_THREADS": str(threads),
        "DOJANG_CACHE": str(folder / "cache"),  # where what is compiled is kept
    }
    if compiler := shutil.which("g++"):
        (folder / "c++").write_text(
            f'#!/bin/sh\nfor each do shift; [ "$each" = -march=native ] && each=-march={called["march"]}; '
            f'set -- "$@" "$each"; done\nexec {compiler} "$@"\n'
        )
        (folder / "c++").chmod(0o755)
        variables["CXX"] = str(folder / "c++")
    return variables


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_numerical_tests_pass_with(name: str, tmp_path: Path) -> None:
    if torch.backends.cpu.get_cpu_capability() == name.upper():
        pytest.skip(f"{name} is what this processor uses anyway: the tests themselves run with it")
    environment = {**os.environ, **forced(name, tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "numerical", "-p", "no:cacheprovider"]
    files = [str(HERE / each) for each in FILES]
    tested = subprocess.run([*command, *files], env=environment, capture_output=True, text=True, timeout=600)
    assert tested.returncode == 0, tested.stdout[-5000:]


def test_a_set_is_what_torch_then_uses(tmp_path: Path) -> None:
    """Otherwise the same arithmetic would be tested three times."""
    environment = {**os.environ, **forced("sse4", tmp_path)}
    program = "import torch; print(torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())"
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["DEFAULT", "1"]
