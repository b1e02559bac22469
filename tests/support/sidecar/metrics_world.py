"""Two lanes on one gate, as the sidecar has them, and what a scrape of them says; no Kafka and no service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from reconsume.sidecar.core.ages import Ages
from reconsume.sidecar.core.commit_batch import CommitResult, Refusal
from reconsume.sidecar.core.counters import Histogram
from reconsume.sidecar.core.lane import Lane, LaneOptions
from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome, Rejected
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.partition import AssignedPartition, FetchedRecords, WantedFetch
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.ports import NoDelivery, Ports, Reply
from reconsume.sidecar.core.progress import Progress
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.push.responses import DURATION_BOUNDS
from reconsume.sidecar.observability.metric_sources import LaneSource, Sources, TransactionMeter
from reconsume.sidecar.observability.metrics import scraper
from reconsume.sidecar.release import Release
from reconsume.topics.levels import TABLE, build_ladder
from reconsume.topics.names import Names
from reconsume.topics.position_ranges import PartitionResets, ResetRange
from reconsume.topics.retry_headers import RetryState
from reconsume.topics.retry_order import Order
from reconsume.topics.tags import TagFilter

ROOM = 1 << 20
START = Now(1_763_690_000_000, 1_000)
LEVELS = ("10s", "1m", "ready")
WAITS = {"billing-RETRY-10s": 10_000, "billing-RETRY-1m": 60_000, "billing-RETRY": 0}


class Outside:
    """The ports of a lane, played by a list of what is out."""

    def __init__(self) -> None:
        self.out: list[tuple[Record, Reply]] = []

    def want_fetch(self, partition: Partition, wanted: WantedFetch) -> None:
        pass

    def deliver(self, record: Record, reply: Reply) -> None:
        self.out.append((record, reply))

    def answer(self, outcome: Outcome) -> None:
        record, reply = self.out.pop(0)
        reply(record, outcome, START)


class OpenQueues:
    """The port that reads queues, of which nothing is ever read but what a test hands over."""

    def open(self, queue: Partition, epoch: int) -> None:
        pass

    def fetch(self, queue: Partition, epoch: int, offset: int) -> None:
        pass

    def read_ahead(self, queue: Partition, epoch: int, offsets: Sequence[int]) -> None:
        pass

    def known(self, queue: Partition, epoch: int, end: int, at_ms: int, at_hand: Sequence[Record]) -> None:
        pass

    def close(self, queue: Partition) -> None:
        pass


class World:
    """Two lanes on one gate, as the sidecar has them, and the function that scrapes them."""

    def __init__(
        self, concurrency: int = 8, *, relay: bool = False, wanted: TagFilter | None = None, queued: bool = False
    ) -> None:
        policy = Policy(
            *(Names("billing"), ("orders", "invoices"), build_ladder("rocketmq"), TABLE, TABLE),
            relay=relay,
            queued=queued,
        )
        self.outside = Outside()
        self.gate = Dispatcher(Pace(concurrency))
        ports = Ports(self.outside, self.outside.deliver, lambda batch: None, lambda at: None, NoDelivery().recall)
        order: OrderBy | None = "key" if queued else None
        self.queues = OpenQueues()
        mains = ports._replace(queues=self.queues)
        self.main = Lane(policy, {}, mains, self.gate, LaneOptions(ROOM, order, wanted))
        self.retry = Lane(policy, WAITS, ports, self.gate, LaneOptions(ROOM))
        self.rebalances = {"assigned": 0, "revoked": 0, "lost": 0}
        self.replaced: dict[str, int] = {}
        self.restarts = {"queue-topic": 0}
        self.ends: dict[Partition, int] = {}
        self.ages = Ages()
        self.durations = Histogram(DURATION_BOUNDS)
        self.transactions = TransactionMeter()
        self.now = START
        self._passed = 0
        self.told: dict[str, int] = {}
        """What the parts beside the lanes count, by the name of the field of `Sources`."""
        self.scrape = scraper(
            Sources(
                group="billing",
                mode="push",
                labels=(("team", "payments"),),
                lanes=(
                    LaneSource(
                        self.main,
                        self.rebalances,
                        lambda: self.ends,
                        ages=self.ages,
                        unread_progress=lambda: self.told.get("unread_progress", 0),
                        misplaced_progress=lambda: self.told.get("misplaced_progress", 0),
                        replaced=self.replaced,
                    ),
                    LaneSource(self.retry, {"assigned": 1}),
                ),
                dispatcher=self.gate,
                deliveries=self.durations,
                transactions=self.transactions,
                topics=("orders", "invoices"),
                levels=LEVELS,
                release=Release("1.2.3", "0123456789ab", "3.11.7", "2.16.1"),
                now=lambda: self.now,
                restarts=lambda: self.restarts,
                late_verdicts=lambda: self.told.get("late_verdicts", 0),
                instances_differ=lambda: bool(self.told.get("instances_differ")),
                removed_levels=lambda: self.told.get("removed_levels", 0),
                bad_policy_records=lambda: self.told.get("bad_policy_records", 0),
                holds_since=lambda: [START.wall_ms - 3_000] * self.told.get("holds", 0),
                view_lag=lambda: self.told.get("view_lag"),
                bad_view_records=lambda: {"view": self.told.get("bad_view_records", 0)},
                service_deaths=lambda: self.told.get("service_deaths", 0),
                odd_verdicts=lambda: {"unknown-id": self.told.get("odd_verdicts", 0)},
                waiting=lambda: self.told.get("waiting", 0),
                loop_errors=lambda: {"sidecar": self.told.get("loop_errors", 0)},
            )
        )

    def give(self, lane: Lane, topic: str, *records: Record) -> None:
        """Assign partition 0 of a topic and hand records over."""
        source = Partition(topic, 0)
        lane.ownership.begin_partitions([AssignedPartition(source, 1, Progress(0))])
        lane.received([FetchedRecords(source, 1, 0, list(records))], START)

    def queue(self, topic: str, *records: Record) -> None:
        """Assign partition 0 of a main topic, and hand over what waits in its queue."""
        grants = [AssignedPartition(Partition(topic, 0), 1, Progress(0))]
        self.main.assigned(grants, START)
        assert self.main.queues is not None
        source = records[0].source
        self.main.queues.opened(AssignedPartition(source, 1, Progress(0)), START)
        self.main.queues.read(FetchedRecords(source, 1, 0, list(records)), START, caught_up=True)

    def reset(self, topic: str, moved: ResetRange) -> None:
        """Let the main lane hear that a reset has moved the position of partition 0."""
        self.main.reset((), {Partition(topic, 0): PartitionResets("5e6f7a8b", moved.cycle, (moved,), ("r1",))}, START)

    def commit(self, lane: Lane, refusal: str = "") -> None:
        """Have what a lane has settled committed, or refused for this reason."""
        self._passed += 50
        later = Now(START.wall_ms + self._passed, START.steady_ms + self._passed)
        lane.tick(later)
        batch = lane.machines.commits.in_flight
        assert batch is not None, "there is nothing to commit"
        if refusal:
            refused = tuple(Refusal(entry, "record", refusal) for entry in batch.entries)
            lane.committed(CommitResult(batch, committed=True, refused=refused), later)
        else:
            lane.committed(CommitResult(batch, committed=True, done=batch.entries), later)

    def sample(self, name: str, **labels: str) -> float:
        """The value of one sample; KeyError when it is not there."""
        return self.samples()[name, tuple(sorted(labels.items()))]

    def samples(self) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], float]:
        found = {}
        for family in text_string_to_metric_families(self.scrape().decode()):
            for sample in family.samples:
                labels = {name: value for name, value in sample.labels.items() if (name, value) != ("group", "billing")}
                key = (sample.name, tuple(sorted(labels.items())))
                assert key not in found
                found[key] = sample.value
        return found


def fresh(topic: str, offset: int = 0) -> Record:
    return Record(Partition(topic, 0), offset, 1, START.wall_ms, b"k", b"v", [], None)


def queued(topic: str, offset: int, key: bytes, due_at: int = START.wall_ms + 60_000) -> Record:
    life = RetryState(
        f"{topic}:0:{offset}", topic, 1, 0, due_at, START.wall_ms, START.wall_ms, "http-500", order=Order(offset)
    )
    return Record(Partition(f"billing-ORDERED-{topic}", 0), offset, 1, START.wall_ms, key, b"v", [], life)


def parked(topic: str, offset: int, key: bytes) -> Record:
    record = queued(topic, offset, key, 0)
    assert record.retry_state is not None
    return replace(record, retry_state=replace(record.retry_state, parked=True))


def retried(topic: str, offset: int, due_at: int, appended: int) -> Record:
    life = RetryState(f"orders:0:{offset}", "orders", 1, 0, due_at, appended, appended, "http-500")
    return Record(Partition(topic, 0), offset, 1, appended, b"k", b"v", [], life)


def a_world_at_work() -> World:
    """One that has a sample of everything."""
    world = World()
    world.told["view_lag"] = 1
    world.ends[Partition("orders", 0)] = 9
    world.give(world.main, "orders", *(fresh("orders", offset) for offset in range(3)))
    for outcome in (COMMITTED, Failed("http-500"), Rejected("http-422")):
        world.outside.answer(outcome)
    for _ in range(2):  # the first failure went at once, the refusal after it
        world.commit(world.main)
    world.reset("orders", ResetRange(0, 9, 1, START.wall_ms))
    return world
