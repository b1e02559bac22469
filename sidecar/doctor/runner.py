"""Run checks side by side, each with a deadline. A check that hangs is one failure and never holds up the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from reconsume.sidecar.doctor.findings import Finding, Report, fail, not_checked
from reconsume.sidecar.errors import ReconsumeError
from reconsume.sidecar.kafka.admin.connection import DeniedError

TURN = 0.1
"""Seconds between two checks of the time while checks run. Ctrl-C waits no longer."""


class Check(NamedTuple):
    """A check with its name. It is abandoned `seconds` after it began."""

    name: str
    call: Callable[[], Sequence[Finding]]
    seconds: float = 25.0


def run(checks: Sequence[Check]) -> Iterator[Report]:
    """Yield each report as soon as it is there."""
    done: queue.SimpleQueue[Report] = queue.SimpleQueue()
    began = time.monotonic()
    for check in checks:
        # Daemon threads: a client call that never returns must not keep the program from ending.
        threading.Thread(target=lambda c=check: done.put(called(c)), name=f"check-{check.name}", daemon=True).start()
    waiting = {check.name: check for check in checks}
    while waiting:
        try:
            report = done.get(timeout=TURN)
        except queue.Empty:
            late = [check for check in waiting.values() if time.monotonic() > began + check.seconds]
            for check in late:
                del waiting[check.name]
                yield Report(check.name, (fail(f"no answer within {check.seconds:g} s", HANGS),))
        else:
            if waiting.pop(report.check, None) is not None:
                yield report


HANGS = "Kafka takes connections and does not answer: look at the brokers, and at what is between"


def called(check: Check) -> Report:
    """Run one check to its end, whatever it raises, and return its report."""
    try:
        return Report(check.name, tuple(check.call()))
    except DeniedError as denied:
        return Report(check.name, (not_checked(str(denied), "run doctor as a user who may see it, such as the admin"),))
    except ReconsumeError as fault:
        return Report(check.name, (fail(str(fault)),))
    except Exception as fault:  # noqa: BLE001 - one check's fault must not hide what the others find
        text = f"a fault of reconsume itself, please report it: {type(fault).__name__}: {fault}"
        return Report(check.name, (fail(text),))
