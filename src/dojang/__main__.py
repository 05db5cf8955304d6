"""Entry point of `dojang` and `python -m dojang`."""

from dojang.core import interrupt

__all__ = ["main"]


def main() -> None:
    """Runs the command line. Ctrl-C is handled before its imports begin."""
    interrupt.install()
    from dojang.commands import main as run

    run()


if __name__ == "__main__":
    main()
