"""`reset`: move the position of a group in a topic while the group runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reconsume.sidecar.cli.dlq.filters import DryRun
from reconsume.sidecar.cli.terminal.arguments import author
from reconsume.sidecar.cli.terminal.confirm import Yes
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.operation import carry_out
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.operation import Operation, Recorder, Unrecorded


def reset(
    options: Options,
    topic: Annotated[str | None, typer.Option("--topic", help="The main topic whose position is moved.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, an offset, a duration back like 2h, or a time with its zone (RFC 3339).",
        ),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="This partition alone.")] = None,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write the skipped records there, as JSON lines.")
    ] = None,
    follow: Annotated[
        str | None, typer.Option("--follow", metavar="ID", help="Follow a reset that was written before; move nothing.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="The reason, for whoever looks later.")] = "",
    who: Annotated[str | None, typer.Option("--who", help="Who does it; user@host by default.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> int:
    """Move the position of the group in a topic while it runs.

    Backwards, the records from the target on are delivered again in a new retry cycle. What waits for a retry of an
    earlier cycle of these records ends without a delivery, and their dead letters stay, superseded. Forwards, the
    skipped records are counted and, with --export, written to a file. Each partition is moved exactly once, by the
    instance that owns it, after its deliveries in flight have finished.

    The plan asks Kafka for offsets and reads no record. The positions are exact; the numbers of records are upper
    bounds. Nothing is written if a topic was recreated, or another reset was carried out, after the plan was made.

    The first line after --yes begins with the id of the reset. The command then waits until every partition is moved
    and the export is written. If it ends before that (3), the owners move the partitions all the same, within an hour,
    and --follow goes on with it. Refused in relay mode, for a broadcast, and while a Spark query consumes the group.

    \b
    Examples:
      reconsume reset --topic orders --to 2h --dry-run
      reconsume reset --topic orders --to 2026-11-30T10:00:00Z --why "the handler had a bug"
      reconsume reset --topic orders --partition 3 --to latest --export skipped.jsonl --yes
      reconsume reset --follow 3f9c1ab2 --export skipped.jsonl
    """
    if follow is None and (topic is None or to is None):
        raise typer.BadParameter("give --topic and --to, or --follow with the ID of a reset")
    if follow is not None and (topic is not None or to is not None or partition is not None):
        raise typer.BadParameter("--follow moves nothing: leave out --topic, --partition and --to")
    settings, by = settings_for_kafka(options), author(who)
    from reconsume.sidecar.group_policy.operations import ActionStore  # the Kafka client is slow to import
    from reconsume.sidecar.group_policy.position_reset import (
        FollowReset,
        MovePosition,
        PositionStore,
        WantedReset,
        read_target,
    )
    from reconsume.sidecar.group_policy.skipped_records import SkippedRecords
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    store = PositionStore(Cluster(settings.kafka), settings.names)
    skipped = None if export is None else SkippedRecords(settings, export)
    operation: Operation
    recorder: Recorder
    if topic is None or to is None:
        operation, recorder, yes = FollowReset(store, follow or "", skipped), Unrecorded(), True
    else:
        try:
            wanted = WantedReset(topic, partition, read_target(to, wall()), why, by)
        except ContractError as fault:
            raise typer.BadParameter(f"--to: {fault}") from None
        operation, recorder = (
            MovePosition(store, settings, wanted, talk, skipped),
            ActionStore(store.cluster, settings.names, talk),
        )
    return carry_out(options, operation, by, recorder, yes=yes, dry_run=dry_run, goes_on=True)
