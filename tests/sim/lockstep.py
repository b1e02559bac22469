"""A call that waits in the middle, on virtual time: it has a thread of its own, and exactly one thread ever runs."""

from __future__ import annotations

import threading
from collections.abc import Callable


class AbandonedError(BaseException):
    """The story has no more use for the call: its process is dead, or the story over."""


class Lockstep:
    """Runs `call` by turns with its maker."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="lockstep", daemon=True)
        self._started = self._abandoned = self.ended = False
        self._failure: BaseException | None = None

    def go(self) -> None:
        """Let it run until it waits or ends; raises what it raises."""
        if self._started:
            self._go.release()
        else:
            self._started = True
            self._thread.start()
        self._back.acquire()
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Called in it: let the others run, until the next `go`."""
        self._back.release()
        self._go.acquire()
        if self._abandoned:
            raise AbandonedError

    def abandon(self) -> None:
        """End it where it waits."""
        if self._started and not self.ended:
            self._abandoned = True
            self.go()

    def _run(self) -> None:
        try:
            self._call()
        except AbandonedError:
            pass
        except BaseException as failure:  # noqa: BLE001 - raised again where it was let go
            self._failure = failure
        finally:
            self.ended = True
            self._back.release()
