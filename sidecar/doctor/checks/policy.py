"""Check whether this configuration can apply the group's policy, as the policy topic holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.group_policy.topic import PolicyTopicRecord
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.group_policy import differences, overridden
from reconsume.topics.policy_record import PolicyHeard, PolicyRecord

NOBODY = "?"
"""A name that no instance has, so that all instances are compared."""
UNKNOWN = f"the policy topic is {ABSENT}"


def policy(records: Sequence[PolicyTopicRecord] | None, settings: Settings) -> list[Finding]:
    """Report whether the group's policy can be applied."""
    if records is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    record = policy_of(records)
    return (
        list(judged(record, settings))
        if record is not None
        else [ok("none is set: each instance follows its configuration")]
    )


def policy_of(records: Sequence[PolicyTopicRecord] | None) -> PolicyRecord | None:
    """Return the group's policy; None if there is none, or it was withdrawn."""
    latest: PolicyRecord | None = None
    for record in records or ():
        if isinstance(record.heard, PolicyHeard):
            latest = record.heard.record
    return latest


def judged(record: PolicyRecord, settings: Settings) -> Iterator[Finding]:
    """Report what is wrong with the policy that is set."""
    try:
        theirs = overridden(settings, record.policy)
    except ConfigError as fault:
        for problem in fault.problems:
            text = f"it cannot be applied: {problem}; running instances keep the previous policy"
            yield fail(text, hint("policy set KEY=VALUE"))
        return
    keys = [difference.key for difference in differences(settings, theirs)]
    if keys and settings.policy_mode == "strict":
        text = f"policy_mode is strict, and an instance with this configuration refuses to start: {listed(keys)} differ"
        yield fail(text, f"write the group's values into the configuration: {hint('policy show')}")
    elif keys:
        yield ok(f"the group's values hold for {listed(keys)}")
    else:
        yield ok("as configured here")


def in_force(records: Sequence[PolicyTopicRecord] | None, settings: Settings) -> Settings:
    """Return the settings with the group's policy applied; the settings alone if the policy cannot be applied."""
    record = policy_of(records)
    try:
        return settings if record is None else overridden(settings, record.policy)
    except ConfigError:
        return settings  # the check `policy` reports it
