"""The supervisor of a sandbox whose owner has gone."""

import socket
import subprocess
import sys


def test_a_supervisor_whose_owner_has_gone_ends_without_a_word() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours, theirs = socket.socketpair()
    code = "from dojang.judge.sandbox.supervisor import main; main()"
    with ours, theirs:
        argv = [sys.executable, "-c", code, str(theirs.fileno()), str(gone.pid)]
        ended = subprocess.run(argv, pass_fds=[theirs.fileno()], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
