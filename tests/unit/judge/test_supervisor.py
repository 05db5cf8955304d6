"""The supervisor of a sandbox after its owner ended."""

import socket
import subprocess
import sys


def test_supervisor_without_owner_exits_silently() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours, theirs = socket.socketpair()
    code = "from dojang.judge.sandbox.supervisor import main; main()"
    with ours, theirs:
        argv = [sys.executable, "-c", code, str(theirs.fileno()), str(gone.pid)]
        ended = subprocess.run(argv, pass_fds=[theirs.fileno()], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
