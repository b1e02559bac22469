"""Temporary folders are gone, whatever step a signal ends the process at."""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from reconsume.sidecar.audit.store import AuditStore
from reconsume.sidecar.files import TemporaryFolder
from reconsume.sidecar.view import copy
from reconsume.sidecar.view.copy import open_copy
from reconsume.sidecar.view.source import Source

STEPS = 20_000
"""More than any of these takes. A step is one instruction of the functions in MODULES."""
MODULES = (
    "reconsume.sidecar.files",
    "reconsume.sidecar.view.copy",
    "reconsume.sidecar.audit.store",
    "secrets",
    "weakref",
)


def stored() -> None:
    open_copy(None, "billing", Source.EVENTS).close()


def audited() -> None:
    with AuditStore() as store:
        store.arrange()


def made() -> None:
    TemporaryFolder("reconsume-test-").remove()


def ended_at(step: int, work: Callable[[], None]) -> bool:
    """Do the work, and end it at one of its steps as a signal does. Return whether it was done before that."""
    steps = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        if not str(frame.f_globals.get("__name__", "")).startswith(MODULES):
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        if steps == step + 1:
            steps += 1  # once: a second signal meets the default action, and what runs at the exit
            raise SystemExit(143)
        return trace

    sys.settrace(trace)
    try:
        work()
    except SystemExit:
        return False
    finally:
        sys.settrace(None)
    return True


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # files: by GC
@pytest.mark.parametrize("work", [made, stored, audited])
def test_a_signal_at_any_step_leaves_no_folder(
    work: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given work in a temporary folder, when it is ended at any of its steps, then no folder stays."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # A process ends with what it had locked. This one goes on, and later tests would wait for the lock for ever.
    monkeypatch.setattr(copy, "_changed", threading.Condition())
    monkeypatch.setattr(copy, "_being_opened", set())
    gc.collect()
    gc.freeze()  # else each collection below looks at all that the tests before have left
    for step in range(STEPS):
        done = ended_at(step, work)
        gc.collect()
        for folder in [known for known in gc.get_objects() if isinstance(known, TemporaryFolder)]:
            folder.remove()  # a frame of the library still refers to it: it would be gone at the exit
        assert list(tmp_path.iterdir()) == [], step
        if done:
            return
    raise AssertionError("the work has more steps")
