"""Programs that run to their end, and processes that end with their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dojang.core.child_process import run_child

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
other = subprocess.Popen(["sleep", "60"])
print(child.pid, other.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import os, time
from dojang.core.child_process import end_with_parent
end_with_parent(os.getppid(), group={group})
print("ready", flush=True)
time.sleep(60)
"""


def test_the_output_of_a_child_and_its_failure() -> None:
    assert run_child(["echo", "done"]) == "done\n"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_child(["sh", "-c", "echo why >&2; exit 3"])
    assert (caught.value.returncode, caught.value.stderr) == (3, "why\n")


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("group", [True, False])
def test_a_process_ends_with_its_killed_parent_and_only_if_wanted_its_group(group: bool) -> None:
    command = [sys.executable, "-c", PARENT, CHILD.format(group=group)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        child, other = map(int, parent.stdout.readline().split())
        assert parent.stdout.readline() == "ready\n"
        assert lives(child)
        parent.kill()
    try:
        deadline = time.monotonic() + 30
        while lives(child) or (group and lives(other)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert lives(other) is not group
    finally:
        if lives(other):
            os.kill(other, signal.SIGKILL)
