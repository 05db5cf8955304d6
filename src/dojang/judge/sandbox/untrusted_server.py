"""Runs an agent's program for a verifier, in a sandbox of which the verifier only sees results.

A connection of the verifier brings one request: files of the working directory and a command, or modules to import.
The sandbox serves it and ends. Commands answer with their output, exit code and the files they leave; imported modules
answer calls (function_calls.py) until the verifier closes the connection.
"""

import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dojang.judge.sandbox import messages
from dojang.judge.sandbox.file_tree import FileTree, TooLarge, TreeLimits, read_tree, write_tree
from dojang.judge.sandbox.output_ends import OutputEnds
from dojang.judge.sandbox.process_group import GroupLimits
from dojang.judge.sandbox.shell_jail import LIBRARY, ShellJail

if TYPE_CHECKING:
    from dojang.judge.sandbox.shell import ShellWorker

__all__ = ["serve_connection"]

_MOST_OUTPUT = 8 << 20
_DRIVER = (
    f"import sys; sys.path.insert(0, '{LIBRARY}/lib'); from dojang.judge.sandbox.module_server import main; main()"
)


def serve_connection(
    worker: "ShellWorker", jail: ShellJail, connection: socket.socket, settings: Mapping[str, Any]
) -> None:
    """Serve the verifier's request; return early if it closes the connection."""
    limits, tree_limits = GroupLimits(**settings["limits"]), TreeLimits(**settings["tree_limits"])
    try:
        request, (stdin, *contents) = messages.receive(connection)
        write_tree(jail.workdir, FileTree(request["entries"], contents))
        control = connection.fileno()
        if request["modules"]:
            argv = [jail.python, "-I", "-c", _DRIVER]
            worker.run(argv, {}, jail.workdir, limits, {}, control, kept=control)
            return
        output, errors = OutputEnds(_MOST_OUTPUT), OutputEnds(_MOST_OUTPUT)
        # bash finds the command along PATH, and says so if there is none
        argv = ["/bin/bash", "-p", "-c", 'exec "$@"', "run-untrusted", *request["argv"]]
        folder, variables = request["folder"], request["environment"]
        end = worker.run(argv, variables, folder, limits, {1: output, 2: errors}, control, stdin=stdin)
        answer: dict[str, Any] = {"status": end.status, "killed": end.killed}
        pieces = [bytes(output.head + output.tail), bytes(errors.head + errors.tail)]
        try:
            left = read_tree(jail.workdir, tree_limits)
            answer |= {"entries": left.entries, "left_out": left.left_out}
            pieces += left.contents
        except TooLarge as error:
            answer |= {"too_large": str(error)}
        messages.send(connection, answer, pieces)
    except messages.Closed:
        return  # the verifier stopped waiting, for example at a time limit of the test
