"""`view repair`: write the events that the view lacks, as its topics of retries and dead letters show."""

from __future__ import annotations

from typing import Annotated

import typer

from reconsume.sidecar.cli.audit import kept, telling
from reconsume.sidecar.cli.terminal.confirm import ask
from reconsume.sidecar.cli.terminal.exit_codes import DONE
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.printable import plural

COLUMNS = ("id", "state", "times", "redrives", "level", "due", "reason")


def repair(
    options: Options,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what the view lacks, and write nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> int:
    """Write the events that the view lacks.

    For a view whose events were deleted before the Spark job had read them (reconsume_view_events_lost_total). Compares
    the view with the level topics and the dead letters: what waits or died later than its row says gets that event
    again, and what waits by its row alone was committed. The group may run meanwhile; the job of `view run` must have
    read all events that are there. An event too many changes nothing.

    \b
    Examples:
      reconsume view repair --dry-run -o table
      reconsume view repair --yes
    """
    from reconsume.sidecar.view_repair.repair import ViewRepair

    settings = settings_for_kafka(options)
    with kept(), telling() as tell, ViewRepair(settings, tell) as run:
        events = list(run.missing())
        for partition in run.unread:
            talk(f"warning: {partition} could not be read to its end; commits are not looked for")
        options.output.rows(COLUMNS, ({name: getattr(event, name) for name in COLUMNS} for event in events))
        if not events:
            talk("the view lacks nothing")
        elif dry_run:
            talk(f"{plural(len(events), 'event')} would be written to {settings.names.events}")
        else:
            if not yes:
                ask(f"Write {plural(len(events), 'event')} to {settings.names.events}?")
            run.write(events)
            talk(f"{plural(len(events), 'event')} written to {settings.names.events}, for the Spark job to read")
    return DONE
