"""One broker for all workers of a run: the first that needs it starts it, and ends it when nobody uses it any more."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka


@contextmanager
def one_for_all(folder: Path, start: Callable[[], EmbeddedKafka]) -> Iterator[str]:
    """The address of the broker that all share who name the same folder.

    Locks say who uses it: the system lets go of those of a worker that crashed.
    """
    address = folder / "kafka.address"
    with (folder / "kafka.users").open("w") as users:
        with (folder / "kafka.start").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            own = None if address.exists() else start()
            if own is not None:
                address.write_text(own.bootstrap)
        try:
            yield address.read_text()
        finally:
            fcntl.flock(users, fcntl.LOCK_UN)
            if own is not None:
                fcntl.flock(users, fcntl.LOCK_EX)
                address.unlink()
                own.close()
