"""What a check says: findings as values, and the report that they make. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

SHOWN = 10
"""Names that one sentence lists at most."""


class Status(StrEnum):
    """How bad it is: a failure loses records or stops them, a warning may come to that."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was seen, as a sentence, and how to mend it."""

    status: Status
    finding: str
    mend: str = ""


class Report(msgspec.Struct, frozen=True):
    """What one check found; at least one finding."""

    check: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """That of the worst finding."""
        found = {finding.status for finding in self.findings}
        return next(status for status in (Status.FAIL, Status.WARN, Status.OK) if status in found)

    @property
    def bad(self) -> tuple[Finding, ...]:
        """The findings that are not ok, the worst first; all of them where there is no bad one."""
        bad = [finding for finding in self.findings if finding.status is not Status.OK]
        return tuple(sorted(bad, key=lambda finding: finding.status is not Status.FAIL)) or self.findings


def ok(finding: str) -> Finding:
    """Nothing is wrong."""
    return Finding(Status.OK, finding)


def warn(finding: str, mend: str = "") -> Finding:
    """Something may become wrong, or could not be looked at."""
    return Finding(Status.WARN, finding, mend)


def fail(finding: str, mend: str = "") -> Finding:
    """Something is wrong."""
    return Finding(Status.FAIL, finding, mend)


def listed(names: Iterable[str]) -> str:
    """Names in a sentence; of many only the first."""
    found: Sequence[str] = sorted(set(names))
    rest = len(found) - SHOWN
    return ", ".join(found[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def ago(milliseconds: float) -> str:
    """A length of time for people: its two largest units are enough."""
    seconds = max(0, round(milliseconds / 1000))
    for unit, size, below, smaller in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size}{unit}{rest}{below}" if rest else f"{seconds // size}{unit}"
    return f"{seconds}s"
