"""`doctor`: find everything that may keep a group from working, each with its fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli import topics
from reconsume.sidecar.cli.terminal.arguments import optional_record_id
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Row, talk
from reconsume.sidecar.printable import plural
from reconsume.topics.acls import User
from reconsume.topics.specs import TopicSpec

if TYPE_CHECKING:
    from reconsume.sidecar.doctor.all_checks import Check
    from reconsume.sidecar.doctor.findings import Report
    from reconsume.sidecar.kafka.admin.descriptions import Topic

COLUMNS = ("check", "status", "finding", "repair")


def doctor(
    options: Options,
    role: Annotated[
        User | None,
        typer.Option("--role", help="Whose rights the user of kafka: should have; found out where it is not given."),
    ] = None,
    deliver: Annotated[
        bool,
        typer.Option(
            "--deliver", help="Also send one made-up record to each path, with the header Reconsume-Trial: 1."
        ),
    ] = False,
    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="ID",
            help="With --deliver: send key, value and headers of this record of a main topic, such as orders:0:17.",
            callback=optional_record_id,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Also end with 1 if something could not be checked.")
    ] = False,
) -> int:
    """Find what is wrong.

    Looks at Kafka, the user's rights, the topics, limits, clocks, progress, transactions, other groups, instances and
    what they say of themselves (failures, new dead letters and how long records wait), the policy, the view and the
    service, which is called as the sidecar calls it. One line for each: ok, warn, fail or not checked, and the repair.
    Nothing is changed; the clocks are compared by records in a transaction that is aborted. Run it where the sidecar
    runs, with its configuration; a person with a role of their own may run it anywhere.

    Ends with 1 when a check fails.

    \b
    Example:
      reconsume doctor -o table
      reconsume doctor --deliver
      reconsume doctor --deliver --record orders:0:17
    """
    from reconsume.sidecar.doctor.all_checks import (
        KAFKA,
        beside_service,
        kafka_checks,
        local_checks,
        unreachable,
    )  # they know the Kafka client, which is slow

    if record is not None and not deliver:
        raise typer.BadParameter("--record goes with --deliver")
    settings = settings_for_kafka(options)
    beginning = local_checks(settings, deliver=deliver, record=record)
    if options.discovered_group is not None:  # a group of ui.groups, whose service is elsewhere
        beginning = [check for check in beginning if check.name == KAFKA]
    reports = {report.check: report for report in reporting(beginning)}
    of_cluster = partial(compare, servers=settings.kafka["bootstrap.servers"])
    following, find_role = kafka_checks(settings, role, of_cluster)
    if reports[KAFKA].status == "fail":
        later: Iterable[Report] = unreachable(following)
    else:
        later = reporting(following)
    reports |= {report.check: report for report in later}
    if reports[KAFKA].status != "fail" and "service" in reports:
        reports["service"] = beside_service(reports["service"], find_role)
    ordered = [reports[check.name] for check in (*beginning, *following)]
    options.output.rows(COLUMNS, [row_of(report) for report in ordered])
    return summed_up(ordered, strict=strict)


def reporting(checks: list[Check]) -> Iterator[Report]:
    """Run the checks; print the status of each and yield its report."""
    from reconsume.sidecar.doctor.all_checks import run

    for report in run(checks):
        talk(f"{report.check}: {report.status}")
        yield report


def compare(spec: TopicSpec, topic: Topic, *, servers: str) -> Iterator[tuple[str, str]]:
    """Yield the findings and fixes that `topics check` would print for a topic. `servers`: the brokers."""
    for finding in topics.compare(spec, topic, servers):
        yield finding.finding, finding.repair


def row_of(report: Report) -> Row:
    """Return a report as a row: all bad findings in one line, and each by itself in `findings`."""
    bad = report.bad
    return {
        "check": report.check,
        "status": str(report.status),
        "finding": "; ".join(finding.finding for finding in bad),
        "repair": "; ".join(dict.fromkeys(finding.mend for finding in bad if finding.mend)),
        "findings": [
            {"status": str(finding.status), "finding": finding.finding, "repair": finding.mend} for finding in bad
        ],
    }


def summed_up(reports: list[Report], *, strict: bool) -> int:
    """Return the exit code; print how many checks failed, warned, and could not be made, wholly or in part."""
    failed = sum(report.status == "fail" for report in reports)
    warned = sum(report.status == "warn" for report in reports)
    not_checked = sum(any(one.status == "not checked" for one in report.findings) for report in reports)
    talk(f"{plural(len(reports), 'check')}: {failed} failed, {warned} with a warning, {not_checked} not checked")
    return FAILED if failed or (strict and not_checked) else DONE
