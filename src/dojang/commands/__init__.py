"""The command line. Parses first; imports what a command needs once it is known which one."""

from dojang.commands.main import app, main

__all__ = ["app", "main"]
