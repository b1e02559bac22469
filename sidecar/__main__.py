"""Run `python -m reconsume.sidecar`, the same as `reconsume`. Ctrl-C prints no traceback, even while commands load."""

from __future__ import annotations

import sys

from reconsume.sidecar.open_files import raise_limit
from reconsume.sidecar.start_signals import end_on_signals


def main() -> None:
    """Run the command line and end the program with its exit code."""
    end_on_signals()
    raise_limit()
    try:
        # Takes half a second, in which the user may press Ctrl-C.
        from reconsume.sidecar.cli import main as run_commands

        run_commands()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
