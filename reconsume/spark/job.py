"""The view's job for what starts a function or a file of a wheel, with the arguments of `python -m reconsume.spark`.

A file for `spark-submit` is `from reconsume.spark.job import main`, and `main()`.
"""

import sys

from reconsume.spark import __main__ as job

__all__ = ["main"]


def main() -> None:
    """Run the command that the process's arguments name.

    Returns after a good end: some platforms take SystemExit for a failure, whatever its code. Raises SystemExit with
    the code of any other end.
    """
    if code := job.main(sys.argv[1:]):
        sys.exit(code)
