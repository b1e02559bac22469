"""What stops `policy set`: a policy that instances could not read, or whose level topics are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.hints import ABSENT
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings.checks import short_waits_of_instances
from reconsume.sidecar.settings.group_policy import KEYS, levels_of, mend_levels, queues_of
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.policy_record import KEY, PolicyHeard, PolicyRecord, parse_record, render_record

if TYPE_CHECKING:
    from reconsume.sidecar.group_policy.state import ControlState, Policies


def fitting(record: PolicyRecord) -> PolicyRecord:
    """Return a record that instances can read: if it is too large, without the keys that this version does not know."""
    if isinstance(parse_record(KEY, render_record(record)), PolicyHeard):
        return record
    unknown = sorted(record.policy.keys() - KEYS.keys())
    talk(f"warning: {plural(len(unknown), 'key')} unknown to this version left out: with them the policy is too large")
    known, was = (
        {key: value for key, value in values.items() if key in KEYS} for values in (record.policy, record.was)
    )
    return PolicyRecord(known, record.who, record.at, was)


def expect_readable(policies: Policies) -> None:
    """Raise ContractError if a newer version wrote the policy: a record of this version would remove its values."""
    if policies.unread is not None:
        raise ContractError(
            f"the group's policy cannot be read: {policies.unread.fault}. Set it with that version; "
            "--replace writes one of this version instead, without the values that it has"
        )


def warn_of_short_waits(old: Settings, new: Settings, state: ControlState) -> None:
    """Print a warning for each wait of a live instance that ends before a delivery may, if the timeout grows.

    `old` and `new`: the settings with the present policy, and with the one to be set. `state`: what the control log
    says of its instances.
    """
    if new.longest_delivery <= old.longest_delivery:
        return
    running = {name: beat.record for name, beat in state.beats.running(wall()).items()}
    for sentence in short_waits_of_instances(new, running):
        talk(f"warning: {sentence}")


def expect_levels(settings: Settings) -> None:
    """Raise ContractError, with the fix, if a level or queue topic that the settings need does not exist."""
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    needed = levels_of(settings) | queues_of(settings)
    missing = needed - Cluster(settings.kafka).find(needed).keys()
    if missing:
        kind, names = "queue" if settings.queued else "level", ", ".join(sorted(missing))
        raise ContractError(f"{kind} topics are {ABSENT}: {names}; create them first: {mend_levels(settings)}")
