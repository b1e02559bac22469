"""Check whether this configuration can apply the group's policy, as the policy topic holds it."""

from __future__ import annotations

from collections.abc import Iterator

from reconsume.sidecar.doctor.findings import Finding, fail, listed, not_checked, ok
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.group_policy import differences, overridden
from reconsume.topics.policy_record import PolicyRecord

NOBODY = "?"
"""A name that no instance has, so that all instances are compared."""
UNKNOWN = f"the policy topic is {ABSENT}"


def policy(state: ControlState | None, settings: Settings) -> list[Finding]:
    """Report whether the group's policy can be applied."""
    if state is None:
        return [not_checked(UNKNOWN, hint("topics apply"))]
    record = state.policies.in_force
    if record is None:
        return [ok("none is set: each instance follows its configuration")]
    return list(judged(record, settings))


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


def in_force(state: ControlState | None, settings: Settings) -> Settings:
    """Return the settings with the group's policy applied; the settings alone if the policy cannot be applied."""
    record = None if state is None else state.policies.in_force
    try:
        return settings if record is None else overridden(settings, record.policy)
    except ConfigError:
        return settings  # the check `policy` reports it
