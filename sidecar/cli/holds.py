"""`hold`, `release`, `holds`: stop the delivery of some records in an incident, for a bounded time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.dlq.filters import DryRun
from reconsume.sidecar.cli.terminal.arguments import author, duration
from reconsume.sidecar.cli.terminal.confirm import NeverAsks, Yes
from reconsume.sidecar.cli.terminal.exit_codes import DONE
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.operation import carry_out
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.operation import Unrecorded
from reconsume.sidecar.printable import plural

if TYPE_CHECKING:
    from reconsume.sidecar.group_policy.operations import HoldStore
    from reconsume.sidecar.settings.model import Settings

WAITS_IN_MEMORY = (
    "warning: what follows a held key waits in memory; at its share of it a partition pauses, with other keys"
)
Who = Annotated[str | None, typer.Option("--who", help="Who does it; user@host by default.")]


def hold(
    options: Options,
    lasts: Annotated[str, typer.Option("--for", metavar="DURATION", help="When it ends by itself: 1s to 7d.")],
    why: Annotated[str, typer.Option("--why", help="The reason, for whoever looks later.")],
    topic: Annotated[str | None, typer.Option("--topic", help="Hold this main topic, with its retries.")] = None,
    level: Annotated[
        str | None, typer.Option("--level", help="Hold this level: main, ready, ordered, or a delay like 10m.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Hold the records with this key, as text.")] = None,
    key_base64: Annotated[str | None, typer.Option("--key-base64", help="The same, of a key that is no text.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Hold everything.")] = False,
    who: Who = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Keep records from being delivered, for a limited time.

    Every instance of the group obeys within 2 s. Deliveries in flight finish normally. Held records wait; no attempt is
    made or counted. Where topic, level and key are given, all of them must fit. A topic is the main topic of a record,
    also of its retries and redrives, and must be one of the configuration's. In pull mode nothing that is held is
    received, and a relay writes nothing of it to the ready topic.
    The command ends with 0 when every live instance has confirmed that it obeys, and with 3, and the names of the
    others, when one has not within 10 s. An instance is live if it is a member of the consumer group and sent a
    heartbeat in the last 3 minutes.
    The hold ends at its time by the clock of each instance, or by `release`. At most 100 are in force at a time.
    It is a record in the group's policy topic, so instances that start later obey it too.

    \b
    Examples:
      reconsume hold --topic orders --for 1h --why "the ledger is being repaired"
      reconsume hold --key customer-42 --for 20m --why "their account is blocked" --yes
      reconsume hold --all --for 10m --why "the database moves"
    """
    settings, store = open_holds(options)
    named = {"topic": topic, "level": level, "key": key, "key_base64": key_base64}
    from reconsume.sidecar.group_policy.operations import CONFIRMED_WITHIN, BeginHold, planned_hold

    lasts_ms, by = duration(lasts, "--for"), author(who)
    try:
        planned = planned_hold(
            named, everything=everything, lasts=lasts_ms, why=why, who=by, topics=settings.topic_names
        )
    except ContractError as fault:
        raise typer.BadParameter(str(fault)) from None
    in_memory = planned.key is not None and settings.deliver.order != "none"
    operation = BeginHold(store, planned, [WAITS_IN_MEMORY] if in_memory else [], CONFIRMED_WITHIN)
    return carry_out(options, operation, by, Unrecorded(), yes=yes, dry_run=dry_run)


def release(
    options: Options,
    idents: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Holds, as `holds` lists them.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Release every hold.")] = False,
    who: Who = None,
    _yes: NeverAsks = False,
) -> int:
    """End holds before their time.

    The instances deliver the held records again, within 2 s. The release is a record too, and is kept until the hold
    would have ended. A hold that a newer version wrote is left alone, but for --all, which deletes it. The command ends
    with 0 or 3 as `hold` does.

    \b
    Examples:
      reconsume release 3f9c1ab2
      reconsume release --all
    """
    if bool(idents) == everything:
        raise typer.BadParameter("give the ids of holds, or --all")
    _, store = open_holds(options)
    from reconsume.sidecar.group_policy.operations import CONFIRMED_WITHIN, ReleaseHolds

    by = author(who)
    operation = ReleaseHolds(store, idents or (), by, everything=everything, confirmed_within=CONFIRMED_WITHIN)
    return carry_out(options, operation, by, Unrecorded(), yes=True)


def holds(options: Options) -> int:
    """List the holds that are in force.

    \b
    Example:
      reconsume holds -o table
    """
    _, store = open_holds(options)
    from reconsume.sidecar.group_policy.operations import HOLD_COLUMNS, hold_row, ignored_remarks

    there = store.read()
    for remark in ignored_remarks(there):
        talk(remark)
    talk(f"{plural(len(there.records), 'hold')} in force")
    options.output.rows(HOLD_COLUMNS, [hold_row(ident, record) for ident, record in there.records.items()])
    return DONE


def open_holds(options: Options) -> tuple[Settings, HoldStore]:
    """Load the configuration and open the policy topic. Raises BadParameter for a broadcast, which has none."""
    from reconsume.sidecar.group_policy.operations import (
        HoldStore,  # the Kafka client is slow to import, and --help needs none
    )
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    settings = settings_for_kafka(options)
    if settings.deliver.broadcast:
        raise typer.BadParameter("deliver.broadcast: instances of a broadcast follow no policy topic, and no hold")
    return settings, HoldStore(Cluster(settings.kafka), settings.names)
