"""Shared by the commands about dead letters: an option for each condition of a filter, and access to the topics."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from reconsume.sidecar.cli.terminal.arguments import author, before, record_id
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk
from reconsume.sidecar.dlq.letters import FILTER_FIELDS, Filter, filter_of
from reconsume.sidecar.errors import LetterError
from reconsume.sidecar.hints import not_ours
from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.events import BY_REDRIVE
from reconsume.topics.retry_headers import LARGEST_LONG

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.dead_letters import DeadLetters, SearchResult
    from reconsume.sidecar.group_policy.operations import ActionStore

SCANNED = 1_000_000
STATUS = re.compile("[1-5][0-9]{2}")
"""An HTTP status as a user may type it in place of its class."""
OPTIONS = {
    field.name: typer.Option(f"--{field.name}", metavar=field.metavar, help=field.help) for field in FILTER_FIELDS
}
Topics = Annotated[list[str] | None, OPTIONS["topic"]]
Reasons = Annotated[list[str] | None, OPTIONS["reason"]]
Since = Annotated[
    str | None, typer.Option("--since", metavar="WHEN", help="Died since: 1h ago, say, or at an RFC 3339 time.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="WHEN", help="Died before; written like --since.")]
Ident = Annotated[
    str,
    typer.Argument(metavar="ID", help="A record's id, like orders:3:1024, or a DLQ position.", callback=record_id),
]
ScanMost = Annotated[int, typer.Option("--scan", min=1, metavar="N", help="Look at the newest N dead letters at most.")]
Who = Annotated[str | None, typer.Option("--who", help="Who does it; user@host by default.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")]


def takes_filter(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give a command an option for each condition of a filter. Its second parameter is the filter."""
    first, _, *others = inspect.signature(function, eval_str=True).parameters.values()
    names = {f"filter_{field.name}": field.name for field in FILTER_FIELDS}
    own: dict[str, Any] = {name: Annotated[list[str] | None, OPTIONS[field]] for name, field in names.items()}
    own |= {"since": Since, "until": Until}
    added = [
        inspect.Parameter(name, first.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in own.items()
    ]

    def call(options: Options, **values: Any) -> int | None:
        texts = {field: values.pop(name) or () for name, field in names.items()}
        wanted = parsed_filter(texts, values.pop("since"), values.pop("until"))
        return function(options, wanted, **values)

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    later = [one.replace(kind=one.KEYWORD_ONLY) for one in others]
    call.__signature__ = inspect.Signature([first, *added, *later])  # type: ignore[attr-defined]
    return call


def parsed_filter(texts: dict[str, Sequence[str]], since: str | None, until: str | None) -> Filter:
    """Build a filter from what was typed. Raises BadParameter if a text or a time is invalid."""
    try:
        wanted = filter_of(
            texts,
            0 if since is None else before(since, "--since"),
            LARGEST_LONG if until is None else before(until, "--until"),
        )
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from fault
    for status in filter(STATUS.fullmatch, wanted.reasons):
        talk(f"warning: no dead letter has the reason {status}: the class of a status is http-{status}")
    for ident in wanted.ids:
        record_id(ident)
    return wanted


class OpenGroup(NamedTuple):
    """A group whose dead letters a command looks at: its configuration, its topics, and who calls."""

    settings: Settings
    letters: DeadLetters
    who: str

    @property
    def actions(self) -> ActionStore:
        """What writes which action was carried out, for the dashboard's page Activity."""
        from reconsume.sidecar.group_policy.operations import ActionStore  # the Kafka client is slow to import

        return ActionStore(self.letters.cluster, self.letters.names, talk)


def open_dlq(options: Options, who: str | None = None, topics: Sequence[str] = ()) -> OpenGroup:
    """Open the group of the configuration. Events name `who` as their author. Warns of each of `topics` that is none of
    the group's now: it may have been once. Raises BadParameter and ConfigError."""
    from reconsume.sidecar.dlq.dead_letters import CLIENT, DeadLetters  # the Kafka client is slow to import
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    settings, by = settings_for_kafka(options), author(who)
    for topic in topics:
        if topic not in settings.topic_names:
            talk(f"warning: {not_ours(topic, settings.topic_names)}")
    cluster, policy = Cluster(settings.kafka, CLIENT), build_policy(settings, f"{BY_REDRIVE}{by}")
    return OpenGroup(settings, DeadLetters(cluster, policy, talk), by)


def expect_letters(result: SearchResult, ident: str) -> None:
    """Raise LetterError if there is no dead letter of this id."""
    if not result.letters:
        more = f" among the newest {result.scanned}; --scan looks at more" if result.cut else ""
        raise LetterError(f"there is no dead letter {printable(ident)}{more}")
