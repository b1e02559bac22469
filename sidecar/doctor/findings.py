"""The findings of a check as values, and the report that they make. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

RIGHTS = "see the check of rights"
SHOWN = 10
"""Names that one sentence lists at most."""


class Status(StrEnum):
    """The severity of a finding: a failure loses records or stops them, a warning may come to that.

    What could not be looked at is neither good nor bad: it is `not checked`.
    """

    OK = "ok"
    NOT_CHECKED = "not checked"
    WARN = "warn"
    FAIL = "fail"


WORST_FIRST = (Status.FAIL, Status.WARN, Status.NOT_CHECKED, Status.OK)


class Finding(msgspec.Struct, frozen=True):
    """One observation as a sentence, and its remedy."""

    status: Status
    finding: str
    mend: str = ""
    unseen: bool = False
    """Whether only a right is missing to look at it. That is right for a role which does not need to see it."""


class Report(msgspec.Struct, frozen=True):
    """The findings of one check, at least one."""

    check: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The status of the worst finding."""
        statuses = {finding.status for finding in self.findings}
        return next(status for status in WORST_FIRST if status in statuses)

    @property
    def bad(self) -> tuple[Finding, ...]:
        """The findings that are not ok, the worst first; all findings if none is bad."""
        bad = [finding for finding in self.findings if finding.status is not Status.OK]
        return tuple(sorted(bad, key=lambda finding: WORST_FIRST.index(finding.status))) or self.findings


def ok(finding: str) -> Finding:
    """Return a finding that nothing is wrong."""
    return Finding(Status.OK, finding)


def warn(finding: str, mend: str = "") -> Finding:
    """Return a finding that something may become wrong."""
    return Finding(Status.WARN, finding, mend)


def not_checked(finding: str, mend: str = "") -> Finding:
    """Return a finding that something could not be looked at, and why."""
    return Finding(Status.NOT_CHECKED, finding, mend)


def unseen(finding: str, mend: str = "") -> Finding:
    """Return a finding that this user may not look at something."""
    return Finding(Status.NOT_CHECKED, finding, mend, unseen=True)


def hidden_topics(names: Iterable[str]) -> list[Finding]:
    """Return a finding that this user may not see these topics; nothing if there are none."""
    distinct = sorted(set(names))
    return [unseen(f"not for this user to see: {listed(distinct)}", RIGHTS)] if distinct else []


def fail(finding: str, mend: str = "") -> Finding:
    """Return a finding that something is wrong."""
    return Finding(Status.FAIL, finding, mend)


def listed(names: Iterable[str]) -> str:
    """Return the names as part of a sentence; only the first ones if there are many."""
    distinct: Sequence[str] = sorted(set(names))
    rest = len(distinct) - SHOWN
    return ", ".join(distinct[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")
