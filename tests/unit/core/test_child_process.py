"""Programs that run to their end."""

import subprocess

import pytest

from dojang.core.child_process import run_child


def test_the_output_of_a_child_and_its_failure() -> None:
    assert run_child(["echo", "done"]) == "done\n"
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_child(["sh", "-c", "echo why >&2; exit 3"])
    assert (caught.value.returncode, caught.value.stderr) == (3, "why\n")
