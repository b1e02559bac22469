"""The log of the actions on the dashboard: JSON lines, appended and flushed before the action begins.

An action that cannot be logged is not carried out. Each is a line of the process's own log, too, which is collected
where no user of the dashboard reaches it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ReconsumeError, SetupError
from reconsume.sidecar.files import open_plain, open_private
from reconsume.sidecar.operation import Tally

SHOWN = 200
TAIL = 256 * 1024
"""Bytes at the end of the file that are read to show it."""

_LOG = logging.getLogger("reconsume.audit")


class Actor(NamedTuple):
    """The user of an action.

    `who`: the name that the user gave. `token`: the name of the token that was used; empty if it was wrong. `peer`: the
    address from which the user calls; behind a proxy, the proxy's.
    """

    who: str
    token: str
    peer: str


class AuditLog:
    """One file, to which any thread may append. Every method raises SetupError if the file cannot be used.

    `group`: whose actions these are where a file has those of several groups; otherwise empty.
    """

    def __init__(self, path: Path, group: str = "") -> None:
        self.path, self._group = path, group
        self._lock = threading.Lock()

    def write(self, action: str, actor: Actor, **facts: Any) -> None:
        """Append a line, and wait until it is on the disk."""
        at = wall()
        of_group = {"group": self._group} if self._group else {}
        line = json.dumps({"v": 1, "at": at, "action": action, **of_group, **actor._asdict(), **facts})
        try:
            with self._lock, open_private(self.path) as file:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SetupError(
                f"the audit log {self.path} (operators.audit_file) cannot be written: {error.strerror}"
            ) from error
        who, token, peer = actor
        entry = {"event": "ui-action", "action": action, "group": self._group, "who": who, "token": token, "peer": peer}
        _LOG.info("an action on the dashboard", extra=entry)

    def recorder(self, actor: Actor, **facts: Any) -> ActorRecorder:
        """Return the recorder of an operation (`sidecar/operation.py`) of this user. `facts`: of both its lines."""
        return ActorRecorder(self, actor, facts)

    def last(self) -> list[dict[str, Any]]:
        """Return the newest lines of the group, the newest first; lines in another format are skipped."""
        try:
            with open_plain(self.path) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
                rows = [row for line in file.read(TAIL).splitlines() if (row := _row(line)) is not None]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SetupError(
                f"the audit log {self.path} (operators.audit_file) cannot be read: {error.strerror}"
            ) from error
        own = [row for row in rows if not self._group or row.get("group") == self._group]
        return own[: -SHOWN - 1 : -1]


class ActorRecorder(NamedTuple):
    """Records operations of one user in the audit log: what is done before it is, and how it ended."""

    audit: AuditLog
    actor: Actor
    facts: dict[str, Any]

    @contextmanager
    def noted(self, action: str, _who: str, what: str = "", why: str = "") -> Iterator[Tally]:
        """Write a line that an action begins, and one with its result. Raises SetupError before anything is done."""
        self.audit.write(action, self.actor, **self.facts, what=what, why=why)
        tally, error = Tally(), ""
        try:
            yield tally
        except ReconsumeError as fault:
            error = str(fault)
            raise
        finally:
            result = {**self.facts, "records": tally.records, "what": tally.what, "error": error}
            self.audit.write(f"{action}-result", self.actor, **result)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # the first line may be incomplete, because the read starts inside the file
        return None
    return row if isinstance(row, dict) else None
