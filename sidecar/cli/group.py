"""`group delete`: the end of a group. Its topics, its consumer groups and the rights on them go; no main topic does.

Everything is named exactly, never by a prefix: `ship-` also begins the names of a group `ship-eu`. Nothing goes while
somebody would lose a record: while the group has members, retries wait, or dead letters are there about which nobody
has decided. Main records that were not delivered are named and stop nothing: they stay where they are.

The consumer groups go first, because Kafka refuses to delete one that has a member: an instance that starts in between
keeps all. What an earlier run has left over, the next one deletes.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import typer

from reconsume.sidecar.cli.dlq.filters import DryRun, Who, open_dlq
from reconsume.sidecar.cli.terminal.confirm import Yes
from reconsume.sidecar.cli.terminal.operation import carry_out
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.letters import OPEN, Filter, RedriveRequest
from reconsume.sidecar.errors import BrokerError, ContractError, RecordError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.operation import Outcome, Plan, Report, Row, Status, Unrecorded
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.model import group_of
from reconsume.topics.acls import Permission, Resource, User, permissions_of
from reconsume.topics.names import Kind

if TYPE_CHECKING:
    from reconsume.sidecar.dlq.dead_letters import DeadLetters
    from reconsume.sidecar.kafka.admin.changes import Rule

COLUMNS = ("what", "name", "action", "why")
WAITS = (Kind.LEVEL, Kind.READY, Kind.ORDERED)
"""The topics in which records wait."""
CLIENT = "reconsume-group"
MOST_MARKERS, SECONDS = 1_000, 30.0
"""Offsets of a topic behind a Spark query's progress that are read, to tell markers of transactions from records, and
for how long."""

app = typer.Typer(cls=Group, help="The group as a whole.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


@command(app, "delete")
def delete(options: Options, who: Who = None, yes: Yes = False, dry_run: DryRun = False) -> int:
    """Delete the group's topics, consumer groups and rights.

    Names match exactly, and a main topic is never touched. Refuses with 1 while the group has members, retries wait, or
    dead letters are there about which nobody has decided; `dlq redrive`, `settle` and `dlq purge` decide. The offsets
    of the main topics go too: a group of this name begins anew. A plan is shown first.

    Rights go only with ALTER on the cluster; without it they are listed. Rights on main topics and outputs stay, since
    others may use them. Ends with 3 when some could not be deleted.

    \b
    Examples:
      reconsume group delete --dry-run
      reconsume group delete --yes
    """
    group = open_dlq(options, who)
    if group.settings.deliver.broadcast:
        raise typer.BadParameter("deliver.broadcast: a broadcast has no group and no topics of its own")
    operation = DeleteGroup(group.settings, group.letters)
    return carry_out(options, operation, group.who, Unrecorded(), yes=yes, dry_run=dry_run)


class Doomed(NamedTuple):
    """What is to be deleted. `rules`: access rules, None if this user may not see them."""

    topics: tuple[str, ...]
    groups: tuple[str, ...]
    rules: tuple[Rule, ...] | None


class DeleteGroup:
    """Delete everything that is the group's own, as an operation. Its topic of actions goes too: it records none."""

    action, why = "group-delete", ""

    def __init__(self, settings: Settings, letters: DeadLetters) -> None:
        self._cluster, self._settings, self._letters = letters.cluster, settings, letters
        self.what = settings.group
        self._doomed = Doomed((), (), ())
        self._private: tuple[str, ...] = ()
        """The consumer groups of Spark queries."""
        self._results: dict[tuple[str, str], str] = {}
        """By kind and name: empty if it is deleted, else why not."""

    @property
    def changed(self) -> int:
        """How many things were deleted."""
        return sum(not error for error in self._results.values())

    def plan(self, report: Report) -> Plan:
        """Find what there is. Raises RecordError while somebody would lose a record, and BrokerError."""
        from reconsume.sidecar.group_policy.control_log import ControlLog
        from reconsume.sidecar.group_policy.queries import live_queries, query_groups

        names, mains = self._settings.names, self._settings.topic_names
        roles = {name: names.role(name, mains) for name in self._cluster.topic_names()}
        kinds = {name: role.kind for name, role in roles.items() if role is not None}
        own = sorted(name for name, kind in kinds.items() if kind is not Kind.MAIN)
        self._private = query_groups(self._cluster, names)
        states = self._cluster.groups((*names.own_groups, *self._private))
        members = [member.client for state in states.values() for member in state.members]
        reasons = [f"the group has members: {', '.join(sorted(members)[:5])}"] if members else []
        log = ControlLog(self._cluster, names).read_if_there() if self._private else None
        reasons += [f"{query.described} reads it" for query in live_queries(log, wall())]
        waiting = dict(self._waiting(kinds))
        reasons += [f"at most {plural(count, 'record')} waiting in {name}" for name, count in waiting.items() if count]
        if any(kind is Kind.DLQ for kind in kinds.values()) and (dead := self._undecided(report)):
            reasons.append(f"{plural(dead, 'dead letter')} about which nobody has decided (`{hint('dlq list')}`)")
        if reasons:
            raise RecordError(f"{names.group} cannot be deleted: {'; '.join(reasons)}")
        self._doomed = Doomed(tuple(own), tuple(name for name, one in states.items() if one.exists), self._rules(own))
        rows = list(self._rows({}))
        doomed = self._doomed
        parts = ((doomed.topics, "topic"), (doomed.groups, "consumer group"), (doomed.rules or (), "right"))
        counted = " and ".join(plural(len(some), noun) for some, noun in parts if some)
        question = f"Delete {counted} of {names.group} for good?" if counted else ""
        nothing = "nothing was deleted" if counted else "nothing of it is there"
        return Plan(COLUMNS, rows, question, nothing, list(self._remarks()))

    def _waiting(self, kinds: Mapping[str, Kind]) -> Iterator[tuple[str, int]]:
        """Yield the topics in which records wait for their time, with how many offsets nobody has read."""
        names, is_relay = self._settings.names, self._settings.deliver.mode == "relay"
        for name, kind in sorted(kinds.items()):
            if kind in WAITS:
                is_main = kind is Kind.ORDERED or (kind is Kind.READY and is_relay)
                yield name, self._unread(name, names.group if is_main else names.retry_group)

    def _unread(self, topic: str, group: str) -> int:
        """Return how many offsets of a topic neither a group nor a Spark query has read."""
        from reconsume.sidecar.group_policy.queries import committed_with_queries
        from reconsume.sidecar.kafka.admin.descriptions import led_partitions
        from reconsume.sidecar.kafka.scan import Bounds, ScanClient

        partitions = led_partitions(self._cluster.existing([topic]).values())
        done = committed_with_queries(self._cluster, self._settings.names, group, partitions)
        unread = self._cluster.unread(partitions, done)
        if not self._private or not 0 < sum(unread.values()) <= MOST_MARKERS:
            return sum(unread.values())
        # The progress of a query ends with its last record, before the marker of the transaction that wrote it.
        spans = self._cluster.spans(unread)
        behind = {one: span._replace(begin=span.end - unread[one]) for one, span in spans.items()}
        with ScanClient(self._settings.kafka, group, CLIENT) as client:
            return sum(1 for _ in client.scan(behind, Bounds(seconds=SECONDS), expected=topic))

    def _undecided(self, report: Report) -> int:
        from reconsume.sidecar.dlq.dead_letters import LetterScan

        with LetterScan(self._letters, RedriveRequest(Filter()), report) as scan:
            return sum(state in OPEN for _, state in scan)

    def _rules(self, own: Collection[str]) -> tuple[Rule, ...] | None:
        """Return the access rules on what is the group's own; None if this user may not see them."""
        from reconsume.sidecar.kafka.admin.changes import Acls

        wanted = owned(self._settings, own)
        try:
            rules = Acls(self._cluster).found()
        except BrokerError:
            return None
        return tuple(rule for rule in rules if (rule.resource, rule.name, rule.pattern == "prefixed") in wanted)

    def _remarks(self) -> Iterator[str]:
        """Yield what stays, and what this user cannot see."""
        for topic in self._settings.topic_names:
            try:
                unread = self._unread(topic, self._settings.group)
            except (BrokerError, ContractError):
                continue
            text = f"{topic} stays, with {plural(unread, 'record')} that were not delivered"
            yield text if unread else f"{topic} stays"
        if self._doomed.rules is None:
            yield f"rights stay: this user may not see them; `{hint('acls export')}` lists those to take away"

    def run(self, _report: Report, _stop: threading.Event) -> None:
        """Delete the consumer groups, then the topics, then the rights; stop where an instance has started. Raises
        BrokerError."""
        from reconsume.sidecar.kafka.admin.changes import Acls, TopicAdmin

        admin, doomed = TopicAdmin(self._cluster), self._doomed
        self._note("consumer group", refused := admin.delete_groups(doomed.groups))
        if any(refused.values()):
            return
        self._note("topic", refused := admin.delete(doomed.topics))
        if not any(refused.values()):
            errors = Acls(self._cluster).delete(doomed.rules or ())
            self._note("right", {right_text(rule): error for rule, error in errors.items()})

    def _note(self, what: str, errors: Mapping[str, str]) -> None:
        self._results |= {(what, name): error for name, error in errors.items()}

    def outcome(self) -> Outcome:
        """Return what was deleted: PARTLY if some was, FAILED if nothing was."""
        rows = list(self._rows(self._results))
        remaining = len(rows) - self.changed
        if not remaining:
            return Outcome(rows, [f"{self.what} is deleted"])
        text = f"{remaining} of {len(rows)} are left; the same command deletes them once their cause is gone"
        return Outcome(rows, [text], Status.PARTLY if self.changed else Status.FAILED)

    def _rows(self, results: Mapping[tuple[str, str], str]) -> Iterable[Row]:
        doomed = self._doomed
        things = [("consumer group", name) for name in doomed.groups]
        things += [("topic", name) for name in doomed.topics]
        things += [("right", right_text(rule)) for rule in doomed.rules or ()]
        for thing in things:
            what, name = thing
            action = "delete" if not results else "left" if results.get(thing, "left") else "deleted"
            yield {"what": what, "name": name, "action": action, "why": results.get(thing, "")}


def owned(settings: Settings, topics: Iterable[str]) -> frozenset[tuple[Resource, str, bool]]:
    """Return what is the group's own of the things that its users have rights on, each with whether it is a prefix."""
    shape, names = group_of(settings), settings.names
    shared = frozenset((*shape.topics, *shape.outputs))

    def is_own(right: Permission) -> bool:
        return right.resource is not Resource.TOPIC or right.name not in shared

    every = [right for user in User for right in permissions_of(user, shape) if is_own(right)]
    own = {(right.resource, right.name, right.prefixed) for right in every}
    own |= {(Resource.TOPIC, name, False) for name in topics}
    own |= {(Resource.GROUP, name, False) for name in names.own_groups}
    return frozenset(own)


def right_text(rule: Rule) -> str:
    """Return an access rule in words."""
    mark = "*" if rule.pattern == "prefixed" else ""
    return f"{rule.principal} {'' if rule.allow else 'not '}{rule.operation} on {rule.resource} {rule.name}{mark}"
