"""`groups`: how each of the groups of `ui.groups` is now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_groups
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, talk

if TYPE_CHECKING:
    from reconsume.sidecar.groups.survey import GroupRow

COLUMNS = (
    *("group", "state", "members", "not_delivered", "oldest_s", "waiting", "dead_letters", "holds", "versions"),
    *("differs", "problem", "outage", "lag", "started", "letters_at_most", "running", "labels", "as_of", "heard_at"),
)


def groups(options: Options) -> int:
    """List the groups of `ui.groups`, and how each is now.

    Members, what is not delivered, how long its oldest record has waited (`oldest_s`), waiting retries, dead letters
    about which nobody has decided, outages, holds, versions and what differs between instances. It comes from Kafka and
    the last heartbeats, so a group is listed even if none of its pods runs. Offsets are counted: there are at most as
    many records.

    A group is found by its policy topic. The file needs only `kafka` and `ui.groups`; one of a single group lists that
    one. Ends with 1 if Kafka does not say how one of the groups is.

    \b
    Examples:
      reconsume groups -o table
      reconsume groups --set 'ui.groups=[billing, ship-*]' -o jsonl
    """
    settings = settings_for_groups(options)
    if options.group is not None or not settings.ui.groups:
        settings = replace(settings, ui=replace(settings.ui, groups=(options.group or settings.group,)))
    from reconsume.sidecar.groups.survey import GroupsSurvey  # the Kafka client is slow to import

    survey = GroupsSurvey(settings)
    try:
        rows = survey.look()
    finally:
        survey.close()
    if survey.problem:
        talk(survey.problem)
    if not rows:
        talk(f"no group is there of {', '.join(settings.ui.groups)}")
    options.output.rows(COLUMNS, [row_of(row) for row in rows])
    return FAILED if any(row.problem for row in rows) else DONE


def row_of(row: GroupRow) -> Row:
    """Return a group as types that JSON has."""
    outage = row.reported.outage
    return {
        "group": row.group,
        "state": row.state,
        "members": row.members,
        "not_delivered": row.backlog.not_delivered,
        "oldest_s": None if row.backlog.oldest_ms is None else row.backlog.oldest_ms / 1000,
        "waiting": row.backlog.waiting,
        "dead_letters": row.backlog.dead_letters,
        "holds": row.reported.holds,
        "versions": list(row.reported.versions),
        "differs": list(row.reported.differs),
        "problem": row.problem,
        "outage": None if outage is None else outage._asdict(),
        "lag": row.backlog.lag,
        "started": row.started,
        "letters_at_most": row.backlog.letters_at_most,
        "running": row.reported.running,
        "labels": dict(row.reported.labels),
        "as_of": row.at,
        "heard_at": row.reported.heard_at,
    }
