"""The command line: `autopar plan | show | diff | explain | emit | run | verify | zoo | demo | profile`. See docs/cli.md.

Nothing here decides anything: commands read their words, call the floors below, and print. Torch and the solver are imported when a command
needs them, so that `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit (`autopar` on the shell).

    Args:
        arguments: without the program's name; None takes the process's own.
    """
    import sys

    from ..collector import rare_collections

    with rare_collections():  # imports, too
        from .app import run_words

        raise SystemExit(run_words(sys.argv[1:] if arguments is None else arguments))
