"""The view's job: its queries, the supervision of them, and the metrics and progress that it reports.

A file for `spark-submit` is `from reconsume.spark.job import main`, and `main()`.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that the process's arguments name, as `python -m reconsume.spark` does.

    Returns after a good end: some platforms take SystemExit for a failure, whatever its code. Raises SystemExit with
    the code of any other end.
    """
    from reconsume.spark.__main__ import main as run_command

    if code := run_command(sys.argv[1:]):
        sys.exit(code)
