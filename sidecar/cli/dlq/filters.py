"""Shared by the `dlq` commands: filter options, access to the dead letter topics, the progress line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from reconsume.sidecar.cli.terminal.arguments import author, before, record_id
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import clock, each_second, talk
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.letters import Eligibility, Filter, Letter, fault_of_text
from reconsume.sidecar.errors import LetterError
from reconsume.sidecar.printable import plural, printable
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.events import BY_REDRIVE
from reconsume.topics.retry_headers import LARGEST_LONG

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.scan import Scan
    from reconsume.sidecar.dlq.search import SearchResult
    from reconsume.sidecar.dlq.topics import DlqTopics
    from reconsume.sidecar.group_policy.operations import ActionStore

SCANNED = 1_000_000
STATUS = re.compile("[1-5][0-9]{2}")
"""An HTTP status as a user may type it in place of its class."""

Ident = Annotated[
    str,
    typer.Argument(metavar="ID", help="A record's id, like orders:3:1024, or a DLQ position.", callback=record_id),
]
Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", help="The record's id, like orders:3:1024; may be repeated."),
]
Reasons = Annotated[
    list[str] | None,
    typer.Option("--reason", metavar="CLASS", help="The last failure's class, like http-500; may be repeated."),
]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="The main topic; may be repeated.")]
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME[=VALUE]", help="Has this header, with this value; repeated: all of them."),
]
Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="KEY", help="The record's key, as text; may be repeated.")
]
Contains = Annotated[
    list[str] | None,
    typer.Option("--contains", metavar="TEXT", help="Its value has this text; repeated: all of them."),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="WHEN", help="Died since: 1h ago, say, or at an RFC 3339 time.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Died before; written like --since.")]
ScanMost = Annotated[int, typer.Option("--scan", min=1, metavar="N", help="Look at the newest N dead letters at most.")]
Who = Annotated[str | None, typer.Option("--who", help="Who does it; user@host by default.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")]


class FilterOptions(NamedTuple):
    """A filter as the user typed it."""

    ids: Sequence[str] | None = None
    reasons: Sequence[str] | None = None
    topics: Sequence[str] | None = None
    headers: Sequence[str] | None = None
    since: str | None = None
    until: str | None = None
    keys: Sequence[str] | None = None
    contains: Sequence[str] | None = None

    @property
    def texts(self) -> list[str]:
        """Return every text of the filter."""
        conditions = (self.ids, self.reasons, self.topics, self.headers, self.keys, self.contains)
        return [text for texts in conditions for text in texts or ()]


def filter_of(options: FilterOptions) -> Filter:
    """Build the filter from the options. Raises BadParameter if one is invalid."""
    for text in options.texts:
        if fault := fault_of_text(text):
            raise typer.BadParameter(fault)
    for status in filter(STATUS.fullmatch, options.reasons or ()):
        talk(f"warning: no dead letter has the reason {status}: the class of a status is http-{status}")
    ids = unique(options.ids)
    for ident in ids:
        record_id(ident)
    pairs = [text.partition("=") for text in options.headers or ()]
    return Filter(
        ids=ids,
        reasons=unique(options.reasons),
        topics=unique(options.topics),
        headers=tuple(sorted({(name, value if sign else None) for name, sign, value in pairs}, key=str)),
        since=0 if options.since is None else before(options.since, "--since"),
        until=LARGEST_LONG if options.until is None else before(options.until, "--until"),
        keys=unique(options.keys),
        contains=unique(options.contains),
    )


def unique(values: Sequence[str] | None) -> tuple[str, ...]:
    """Return each value once, sorted: the same filter has one form, in whatever order it is typed."""
    return tuple(sorted(set(values or ())))


def open_dlq(options: Options, who: str | None = None) -> tuple[Settings, DlqTopics, Policy]:
    """Return the configuration, the dead letter topics and the policy. Events name `who` as their author."""
    from reconsume.sidecar.dlq.topics import DlqTopics  # the Kafka client is slow to import, and --help needs none

    settings = settings_for_kafka(options)
    policy = build_policy(settings, f"{BY_REDRIVE}{author(who)}")
    return settings, DlqTopics(settings.kafka, settings.names, settings.topic_names, talk), policy


def open_actions(there: DlqTopics) -> ActionStore:
    """Return what writes which action was carried out, for the dashboard's page Activity."""
    from reconsume.sidecar.group_policy.operations import ActionStore  # the Kafka client is slow to import

    return ActionStore(there.kafka, there.names, talk)


def in_words(conditions: Filter) -> str:
    """Return the conditions of a filter in words, for the list of actions; `all` if it has none.

    Keys, headers and texts of values are counted and not named: they may be personal data.
    """
    named = {"id": conditions.ids, "reason": conditions.reasons, "topic": conditions.topics}
    counted = {"key": conditions.keys, "text in the value": conditions.contains, "header": conditions.headers}
    words = [f"{name} {' or '.join(texts)}" for name, texts in named.items() if texts]
    words += [plural(len(texts), name) for name, texts in counted.items() if texts]
    words += [f"since {clock(conditions.since)}"] if conditions.since else []
    words += [f"until {clock(conditions.until)}"] if conditions.until < LARGEST_LONG else []
    return ", ".join(words) or "all"


def newest_letter(there: DlqTopics, policy: Policy, ident: str, scan: int) -> tuple[Letter, Eligibility]:
    """Return the newest dead letter with this id that counts, and whether a redrive takes it; a copy if `ident` is the
    position of one. Raises LetterError if there is none."""
    from reconsume.sidecar.dlq.search import find_id  # the Kafka client is slow to import

    result = find_id(there, policy, ident, scan, progress_line("found"))
    expect_letters(result, ident)
    originals = [(letter, state) for letter, state in result.letters if state is not Eligibility.COPY]
    return (originals or result.letters)[0]


def expect_letters(result: SearchResult, ident: str) -> None:
    """Raise LetterError if there is no dead letter of this id."""
    if not result.letters:
        more = f" among the newest {result.scanned}; --scan looks at more" if result.cut else ""
        raise LetterError(f"there is no dead letter {printable(ident)}{more}")


def progress_line(what: str) -> Callable[[Scan, int], None]:
    """Return a function that prints each second, on a terminal, how far the scan is."""
    # The total is one of offsets, of which transactions have some without a letter.
    return each_second(
        lambda scan, count: (
            f"looked at {plural(scan.read, 'dead letter')} of at most {scan.total}, {count} {what}, {scan.rate:.0f}/s"
        )
    )
