"""Settle records that wait: in a level, in the ready topic, or in the queue of a key; one of them, or all that fit.

One decision is one record of the control log, however many records it is about. The owners of their partitions carry it
out, each in its transactions. So a plan reads what waits now and writes nothing; `run` writes the decision, and from
then on only follows it: whoever follows may be killed, and what was decided is done all the same.

`WaitingSearch` reads: each open copy of the group's level topics, the ready topic and the queue topics. The command
`settle`, `POST /v1/settle` and the dashboard use `SettleWaiting` (`sidecar/operation.py`); every call blocks, and any
thread may make it. What owners do is in `sidecar/core/settling.py`.

- *Which records fit* is asked of `DecisionRecord.fits`, here and by the owner, so that a plan counts what is settled.
- *Where a decision applies*: in the partitions where something fits, up to their ends at the time when it is written.
- *Records behind a key*: `commit` and `dead-letter` end each of them in order; only the first one can be tried now.
- *A relay's ready topic* belongs to its service, so nothing waits there; and what is in the ready topic is due within
  seconds, so that nothing there has to be tried now.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import msgspec

from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.order import OrderBy, line_of
from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.sidecar.core.record import Partition, Record
from reconsume.sidecar.dlq.dead_letters import DeadLetters
from reconsume.sidecar.dlq.settle_request import NOTHING_WRITTEN, ONE_COLUMNS, NotWaitingError, Settled, SettleRequest
from reconsume.sidecar.errors import BrokerError, ContractError, LetterError
from reconsume.sidecar.group_policy.control_log import ControlLog
from reconsume.sidecar.group_policy.decisions import DecisionState, DecisionStatus, DecisionStore
from reconsume.sidecar.group_policy.state import HoldsInForce
from reconsume.sidecar.hints import hint
from reconsume.sidecar.kafka.admin.descriptions import PartitionName, Span, Topic, led_partitions, unled_text
from reconsume.sidecar.kafka.consumer.log_checks import NO_ID
from reconsume.sidecar.kafka.errors import ANSWER_SECONDS
from reconsume.sidecar.kafka.listed_records import progress_with_notes
from reconsume.sidecar.kafka.messages import to_record
from reconsume.sidecar.kafka.policy_topic import read_present_resets
from reconsume.sidecar.kafka.scan import Bounds, ScanClient, partition_of
from reconsume.sidecar.operation import Outcome, Plan, Report, Row, Status, no_report
from reconsume.sidecar.printable import plural, printable
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.attempt import Attempt, attempt_of
from reconsume.topics.decision_record import (
    MOST_RANGES,
    RETRY_NOW,
    DecidedRange,
    DecisionRecord,
    level_of_wait,
    render_decision,
)
from reconsume.topics.group_rules import number_of
from reconsume.topics.names import LEGAL_NAMES, Kind
from reconsume.topics.policy_record import LARGEST
from reconsume.topics.position_ranges import is_superseded
from reconsume.topics.reasons import reason_class, text_of
from reconsume.topics.retry_headers import LARGEST_LONG, BadHeader, RetryState, parse_retry_headers
from reconsume.topics.retry_order import Order

MOST_READ = 500_000
"""Copies that a plan reads at most."""
LOOK_EVERY_S = 0.5
"""Seconds between two looks at what the owners have noted."""
QUIET_S = 15.0
"""Seconds without progress after which the follower says which instances run."""
DUE_SOON_MS = 10_000
"""ms within which a record is due that may be delivered before its owner hears of the decision."""
FOLLOWED_S, PLANNED_S = 10.0, 60.0
"""Seconds for which a call follows a decision about one record, and in which one about many must be planned."""
MOST_IN_SIDECAR = 100_000
"""Copies that a plan reads at most within a sidecar, whose memory is for records."""
Line: TypeAlias = tuple[str, int, bytes]
"""Main topic and partition, and the name of a queue in them (`line_of`)."""
MANY_COLUMNS = ("topic", "level", "reason", "records", "due_soon", "is")


class WaitingGroup(NamedTuple):
    """What a plan counts together. `hold`: the id of a hold that keeps these records from being tried; or empty."""

    topic: str
    level: str
    reason: str
    hold: str


class WaitingCopy(msgspec.Struct, frozen=True, gc=False):
    """One record that waits and is meant: its newest copy, without key and value.

    `line`: the queue of its key, for one in a queue topic.
    """

    state: RetryState
    source: Partition
    offset: int
    group: WaitingGroup
    line: Line | None

    @property
    def rank(self) -> tuple[Attempt, int]:
        """What copies of one record are compared by: the greatest counts."""
        return attempt_of(self.state), self.offset


class SearchedPartition(NamedTuple):
    """A partition where records wait: what its topic is for, the digest of its topic's id, and what is done there."""

    kind: Kind
    log: str
    span: Span
    progress: Progress | None


class WaitingSearch:
    """What waits now and fits a request. Making one reads nothing; `read` reads everything. Raises BrokerError.

    `order`: as `LaneOptions.order`; None: the group delivers in no order.
    """

    def __init__(self, there: DeadLetters, order: OrderBy | None, request: SettleRequest) -> None:
        self._there, self._order, self._request = there, order, request
        self.rules = there.policy
        self._decision = decision_of(request, ())
        self.partitions: dict[PartitionName, SearchedPartition] = {}
        self.copies: dict[str, WaitingCopy] = {}
        """By the record's id: the one record that is asked for, and what fits in queue topics."""
        self.counts, self.soon = Counter[WaitingGroup](), Counter[WaitingGroup]()
        """What would be settled, and how many of these are due within DUE_SOON_MS."""
        self.behind = 0
        """Records that fit and wait behind others of their keys."""
        self.remarks: list[str] = []
        """What the plan does not know."""
        self.is_cut = False
        """Whether more waits than was read."""
        self._sources: set[PartitionName] = set()
        """The partitions where something is settled."""
        self._heads: dict[Line, tuple[tuple[tuple[int, int], int], str]] = {}
        """The first record of each key, by its order and timestamp."""
        self._holds = HoldsInForce({})

    def read(self, report: Report, most: int = MOST_READ) -> None:
        """Read what waits, `most` copies at most."""
        topics, kinds = self._topics()
        self.remarks += [f"warning: {text}" for text in [unled_text(topics.values(), self._may_have)] if text]
        if self._request.how == RETRY_NOW:
            self._holds = ControlLog(self._there.cluster, self._there.names).read().holds.in_force(wall())
        self._find_partitions(topics, kinds)
        spans = {name: one.span for name, one in self.partitions.items() if one.span.begin < one.span.end}
        resets, bad, superseded = read_present_resets(self._there.cluster, self._there.names), 0, 0
        cluster = self._there.cluster
        with ScanClient(cluster.kafka, self._there.names.retry_group, cluster.client_id) as client:
            scan = client.scan(spans, Bounds(ANSWER_SECONDS, records=most), expected="what waits", report=report)
            for message in scan:
                name, offset = partition_of(message), message.offset() or 0
                if (done := self.partitions[name].progress) is not None and done.covers(offset):
                    continue
                record = to_record(message, Partition(*name), 0, None)
                state = parse_retry_headers(record.headers or [], LEGAL_NAMES, LARGEST_LONG)
                if isinstance(state, BadHeader):
                    bad += 1
                    continue
                if is_superseded(resets, state.id, state.cycle):
                    superseded += 1
                    continue
                self._take(state, Partition(*name), offset, record.key, self._line_of(name, state, record))
            if missing := scan.missing("what waits"):
                self.is_cut = True
                self.remarks.append(f"warning: {missing}; the decision is about all of them")
        for copy in self.copies.values():
            self._count(copy)
        if superseded:
            self.remarks.append(f"left out, as a reset has superseded them: {plural(superseded, 'record')}")
        if bad:
            self.remarks.append(f"warning: not written by Reconsume, and left alone: {plural(bad, 'record')}")

    def _topics(self) -> tuple[dict[str, Topic], dict[str, Kind]]:
        """Return the topics where records may wait that are meant, and what each is for."""
        there, policy = self._there, self._there.policy
        mains, wanted = policy.topics, {Kind.LEVEL, Kind.ORDERED}
        if not policy.relay and self._request.how != RETRY_NOW:
            wanted.add(Kind.READY)
        topic = self._request.id.rsplit(":", 2)[0] if self._request.id else self._request.topic
        kinds = dict[str, Kind]()
        for name in there.cluster.topic_names():
            role = there.names.role(name, mains)
            if role is not None and role.kind in wanted and (not topic or role.topic in (None, topic)):
                kinds[name] = role.kind
        return there.cluster.visible(kinds), kinds

    def _may_have(self, partition: PartitionName) -> bool:
        """Whether a record that is meant may wait in a partition: in a queue it keeps the number of its main one."""
        ident, names = self._request.id, self._there.names
        is_queue = bool(ident) and partition[0] == names.ordered(ident.rsplit(":", 2)[0])
        return not is_queue or partition[1] == number_of(ident)

    def _find_partitions(self, topics: Mapping[str, Topic], kinds: Mapping[str, Kind]) -> None:
        cluster, names = self._there.cluster, self._there.names
        led = list(filter(self._may_have, led_partitions(topics.values())))
        queues = [one for one in led if kinds[one[0]] is Kind.ORDERED]
        others = [one for one in led if kinds[one[0]] is not Kind.ORDERED]
        progress = progress_with_notes(
            cluster, names, lambda: cluster.progress(names.group, queues) | cluster.progress(names.retry_group, others)
        )
        for name, span in cluster.spans(led).items():
            ident, done = topics[name[0]].id, progress.get(name)
            log = "" if ident in ("", NO_ID) else LogId.of("", ident).topic
            begin = span.begin if done is None else max(span.begin, done.next)
            self.partitions[name] = SearchedPartition(kinds[name[0]], log, Span(begin, span.end), done)

    def _line_of(self, name: PartitionName, state: RetryState, record: Record) -> Line | None:
        if self.partitions[name].kind is not Kind.ORDERED or self._order is None:
            return None
        return state.topic, name[1], line_of(record, self._order)

    def _take(self, state: RetryState, source: Partition, offset: int, key: bytes | None, line: Line | None) -> None:
        if line is not None:
            first = ((state.order or Order(0)).rank, state.timestamp), state.id
            self._heads[line] = min(self._heads.get(line, first), first)
        level, request = level_of_wait(state, self.partitions[source].kind, self.rules), self._request
        if not (state.id == request.id if request.id else self._decision.fits(state, key, level)):
            return
        gate = str(Kind.READY if line is None else Kind.ORDERED)
        hold = self._holds.holds.fitting(gate, state.topic, key) if self._holds.records else None
        group = WaitingGroup(state.topic, level, reason_class(state.reason), "" if hold is None else hold.id)
        copy = WaitingCopy(state, source, offset, group, line)
        if line is None and not request.id:  # what waits in levels may be much: it is only counted
            self._count(copy)
        elif (before := self.copies.get(state.id)) is None or before.rank <= copy.rank:
            self.copies[state.id] = copy

    def _count(self, copy: WaitingCopy) -> None:
        is_behind, is_tried = self.head_of(copy) != copy.state.id, self._request.how == RETRY_NOW
        self.behind += is_behind
        if is_behind and is_tried:
            return
        self._sources.add(copy.source)
        self.counts[copy.group] += 1
        self.soon[copy.group] += not is_behind and not copy.state.parked and copy.state.due_at < wall() + DUE_SOON_MS

    def head_of(self, copy: WaitingCopy) -> str:
        """Return the id of the first record of a record's key; its own outside a queue."""
        return copy.state.id if copy.line is None else self._heads[copy.line][1]

    def ranges(self) -> tuple[DecidedRange, ...]:
        """Return where the decision applies, up to the ends that the partitions have now."""
        names = set(self.partitions) if self.is_cut else self._sources
        ends = self._there.cluster.spans(sorted(names))
        return tuple(
            DecidedRange(*name, self.partitions[name].log, self.partitions[name].span.begin, span.end)
            for name, span in sorted(ends.items())
            if span.end > self.partitions[name].span.begin
        )


def decision_of(
    request: SettleRequest, ranges: tuple[DecidedRange, ...], attempt: Attempt | None = None
) -> DecisionRecord:
    """Return the record of a decision. `attempt`: of the one record that it is about."""
    counts = attempt or Attempt(0, 0, 0)
    return DecisionRecord(
        request.how,
        request.by,
        request.why,
        wall(),
        ranges,
        request.rate,
        request.id,
        counts.cycle,
        counts.redrives,
        counts.times,
        request.topic,
        request.reason,
        request.level,
        request.key,
    )


class SettleWaiting:
    """Settle what waits, as an operation. `tell`: gets a line once the decision is written, which begins with its id,
    and warnings while it is followed. `follows`: seconds; None: until it ends. `most`: copies that a plan reads.
    """

    action = "settle"

    def __init__(
        self,
        there: DeadLetters,
        settings: Settings,
        request: SettleRequest,
        tell: Callable[[str], None] = lambda _text: None,
        follows: float | None = None,
        most: int = MOST_READ,
    ) -> None:
        self._request, self._tell, self._follows, self._most = request, tell, follows, most
        self._is_sparks = settings.deliver.mode == "spark"
        self._search = WaitingSearch(there, settings.order_by, request)
        self._store = DecisionStore(there.cluster, there.names)
        self._plan: Plan | None = None
        self.decision = ""
        """The id of the decision, once it is written."""
        self._written: DecisionRecord | None = None
        self.status: DecisionStatus | None = None
        """How far the decision was at the last look."""
        self.why = request.why

    @property
    def what(self) -> str:
        """Which records are settled, and how; with the id of the decision once it is written."""
        named = self._request.id or ("what waits" if self._plan is None else plural(self.planned, "waiting record"))
        return " ".join([*([self.decision] if self.decision else []), f"{named}: {self._end}"])

    @property
    def changed(self) -> int:
        """How many records were settled, as far as was seen."""
        return 0 if self.status is None else self.status.done

    @property
    def planned(self) -> int:
        """How many records the plan has found."""
        return self._search.counts.total()

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the plan."""
        return () if self._plan is None else self._plan.rows

    def plan(self, report: Report) -> Plan:
        """Read what waits.

        Raises BrokerError, ContractError if no sidecar owns it, and of one record NotWaitingError if it does not wait,
        and LetterError if it cannot be settled so.
        """
        search, request = self._search, self._request
        if not request.id or request.id.rsplit(":", 2)[0] in search.rules:
            search.read(report, self._most)
        if request.id and request.id not in search.copies:
            raise NotWaitingError(f"{printable(request.id)} does not wait in this group")
        if self._is_sparks:
            raise ContractError("in mode spark no sidecar owns what waits: let the Spark job's handler decide")
        self._store.expect_owner()
        self._plan = self._plan_of_one() if request.id else self._plan_of_many()
        return self._plan

    def _plan_of_one(self) -> Plan:
        search, request = self._search, self._request
        ident, copy = printable(request.id), search.copies[request.id]
        head, state, end = search.head_of(copy), copy.state, self._end
        if request.how == RETRY_NOW and head != state.id:
            raise LetterError(f"{ident} cannot be tried now: it waits behind {head} of its key, which must end first")
        row = {
            "id": request.id,
            "place": f"{copy.source.topic}:{copy.source.number}:{copy.offset}",
            "reason": copy.group.reason,
            "text": text_of(state.reason),
            "was": "parked" if state.parked else "waiting" if head == state.id else "behind",
            "is": end,
            "why": request.why,
        }
        return Plan(ONE_COLUMNS, [row], f"Settle {ident}, so that it is {end}?", NOTHING_WRITTEN, search.remarks)

    @property
    def _end(self) -> str:
        """What the decision makes of what it settles; of one record also which hold it waits for."""
        copy = self._search.copies.get(self._request.id)
        return self._request.end if copy is None else self._end_of(copy.group)

    def _end_of(self, group: WaitingGroup) -> str:
        return f"tried once hold {group.hold} ends" if group.hold else self._request.end

    def _plan_of_many(self) -> Plan:
        search, request = self._search, self._request
        rows = [
            {
                "topic": group.topic,
                "level": group.level,
                "reason": group.reason,
                "records": count,
                "due_soon": search.soon[group],
                "is": self._end_of(group),
            }
            for group, count in sorted(search.counts.items(), key=lambda one: (-one[1], one[0]))
        ]
        remarks, behind = list(search.remarks), search.behind
        search.copies.clear()  # they are counted, and a page keeps the plan until it is agreed to
        if behind and request.how == RETRY_NOW:
            remarks.append(f"{plural(behind, 'record')} behind others of their keys stay: only the first is tried now")
        elif behind:
            remarks.append(f"{plural(behind, 'record')} of these wait behind others of their keys")
        if soon := search.soon.total():
            remarks.append(f"{plural(soon, 'record')} of these are due within 10 s, and may be delivered before")
        if not self.planned and not search.is_cut:
            return Plan(MANY_COLUMNS, [], "", "nothing that waits fits; nothing was written", remarks)
        question = f"Settle {plural(self.planned, 'waiting record')}, so that each is {request.end}?"
        return Plan(MANY_COLUMNS, rows, question, NOTHING_WRITTEN, remarks)

    def run(self, report: Report, stop: threading.Event) -> None:
        """Write the decision, and follow it until it ends or `stop` is set. Raises BrokerError if it is not known to be
        written, and ContractError if nobody would carry it out."""
        self.write()
        request, planned = self._request, self.planned
        rate = f", at most {request.rate}" if request.rate else ""
        named = printable(request.id) if request.id else plural(planned, "waiting record")
        self._tell(f"{self.decision} settles {named}: {self._end}{rate}; `{hint(f'settle --status {self.decision}')}`")
        deadline = None if self._follows is None else time.monotonic() + self._follows
        moved, moved_at = -1, time.monotonic()
        for status in self._looks(stop, deadline):
            report(status.done, max(planned, status.done))
            if status.done + status.finished > moved:
                moved, moved_at = status.done + status.finished, time.monotonic()
            elif time.monotonic() > moved_at + QUIET_S:
                moved_at = time.monotonic()
                self._tell(f"warning: nothing was settled for {QUIET_S:.0f} s: is an instance of the group running?")

    def write(self) -> str:
        """Write the decision, and return its id. Raises as `run` does."""
        ranges = self._search.ranges()
        copy = self._search.copies.get(self._request.id)
        record = decision_of(self._request, ranges, None if copy is None else attempt_of(copy.state))
        if len(ranges) > MOST_RANGES or len(render_decision(record)) > LARGEST:
            raise ContractError(
                f"it waits in {len(ranges)} partitions, too many for one decision: narrow it by --topic"
            )
        self.decision, self._written = self._store.write(record), record
        return self.decision

    def _looks(self, stop: threading.Event, deadline: float | None) -> Iterator[DecisionStatus]:
        """Yield how far the decision is, every LOOK_EVERY_S, and delete it once it is finished."""
        while not stop.is_set() and (deadline is None or time.monotonic() < deadline):
            with suppress(BrokerError):  # it is carried out all the same, and the next look may be answered
                self.status = self._store.follow(self.decision, self._written)
                yield self.status
                if self.status.state is DecisionState.FINISHED:
                    self._store.delete(self.decision)
                if self.status.state is not DecisionState.OPEN:
                    return
            stop.wait(LOOK_EVERY_S)

    def outcome(self) -> Outcome:
        """Say what was settled: PARTLY if the decision is not carried out yet, or was ended before."""
        plan, status, request = self._plan, self.status, self._request
        rows: list[Row] = [] if plan is None else [{**row, "decision": self.decision} for row in plan.rows]
        state = DecisionState.OPEN if status is None else status.state
        done, without = (0, 0) if status is None else (status.done, status.without_effect)
        if request.id and state is DecisionState.FINISHED and not done:
            text = f"nothing was settled: {printable(request.id)} had ended or was delivered before"
            return Outcome(rows, [f"{text}; settle it again if it still waits"], Status.FAILED)
        text = f"settled {printable(request.id) if request.id and done else plural(done, 'record')}: {self._end}"
        if without:
            text += f"; {without} had ended or were delivered before"
        if state is DecisionState.FINISHED:
            return Outcome(rows, [text])
        if state is DecisionState.ENDED:
            return Outcome(rows, [f"{text}; the decision was ended before all was done"], Status.PARTLY)
        follow, end = (hint(f"settle --{word} {self.decision}") for word in ("status", "end"))
        return Outcome(rows, [f"{text} so far; the owners go on: `{follow}` follows, `{end}` ends it"], Status.PARTLY)


class DecisionCalls:
    """What `/v1/settle` does: plan a decision, write it, see how far it is, end it."""

    def __init__(self, there: DeadLetters, settings: Settings) -> None:
        self._there, self._settings = there, settings
        self._store = DecisionStore(there.cluster, there.names)

    def settle(self, request: SettleRequest, *, dry_run: bool) -> Settled:
        """Plan a decision, and write it unless it is a dry run. One about one record is followed for FOLLOWED_S."""
        deadline = time.monotonic() + (FOLLOWED_S if request.id else PLANNED_S)

        def expect_time(_read: int, _of: int) -> None:
            if time.monotonic() > deadline:
                raise BrokerError("what waits could not be read in time; nothing was decided")

        operation = SettleWaiting(self._there, self._settings, request, follows=FOLLOWED_S, most=MOST_IN_SIDECAR)
        operation.plan(expect_time)
        if dry_run or not operation.planned:
            return Settled(operation.rows, operation.planned)
        if not request.id:
            return Settled(operation.rows, operation.planned, operation.write())
        operation.run(no_report, threading.Event())
        status = operation.status
        is_finished = status is not None and status.state is DecisionState.FINISHED
        return Settled(operation.rows, 1, operation.decision, operation.changed > 0 if is_finished else None)

    def status(self, decision: str) -> Row:
        """Return how far a decision is. Raises RecordError if it is not known, and BrokerError."""
        return self._store.status(decision).row

    def end(self, decision: str, who: str) -> None:
        """End a decision. Raises RecordError if it is not open, and BrokerError."""
        self._store.end(decision, who)
