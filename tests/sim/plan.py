"""Everything that a story depends on: the same plan tells the same story."""

from __future__ import annotations

from typing import Literal, NamedTuple

from reconsume.sidecar.core.order import OrderBy
from reconsume.sidecar.core.pace.rates import TopicTerms
from reconsume.sidecar.core.progress import Bounds
from reconsume.topics.rates import Rate
from tests.sim.service_model import Weights

TABLE = (1_000, 5_000, 10_000)
INTERVAL = 700
"""ms between two tries in place, where a plan is ordered."""
LOCK = 3_000
"""ms that a revoked partition waits for its deliveries."""


class Config(NamedTuple):
    """What the sidecars of one roll-out are configured with."""

    topics: tuple[str, ...] = ("orders",)
    table: tuple[int, ...] = TABLE
    ladder: str = "pulsar"
    in_place: bool = False
    """Whether failures are retried in place although the plan has queues: what waits there is drained."""
    retries: int | None = None
    parks: bool | None = None
    """As of the plan; None: those of the plan."""


class Fault(NamedTuple):
    """Something that goes wrong: what, when, for how long, to which of them (any number)."""

    kind: str
    at: int
    lasts: int
    whom: int


class Plan(NamedTuple):
    """Everything that a story depends on."""

    seed: int
    records: int = 20
    sidecars: int = 1
    partitions: int = 2
    concurrency: int = 4
    room: int = 1 << 20
    retries: int = 3
    deaths: int | None = 3
    """Deaths after which a record is put into the DLQ."""
    killers: tuple[tuple[int, int], ...] = ()
    """Records, by number, that kill the process which delivers them for the n-th retry; before that they fail."""
    put_off: int = 0
    """How often each process is told to come back later before such a record fails or kills."""
    failures: int | None = None
    """Failures in a row that are an outage."""
    spread: int = 3_000
    """ms over which the records arrive."""
    weights: Weights = Weights()
    fates: tuple[int, int, int] = (1, 0, 0)
    """How likely a transaction is committed, aborted, or ends nobody knows how."""
    faults: tuple[Fault, ...] = ()
    bounds: Bounds = Bounds()
    """How far a partition may go beyond its first open record."""
    order: OrderBy | None = None
    """What is delivered one at a time."""
    queued: bool = False
    """Whether what fails waits in a queue, and what follows behind it."""
    queue_made_at: int = 0
    """ms after which the queue topics are made."""
    parks: bool = False
    """Whether what has used up its retries waits in its queue for a person."""
    most_waiting: int = 20_000
    """How many records of a partition may wait in its queue."""
    hop_span: int = 8_192
    """Offsets of a queue beyond which its first records are written again at its end."""
    tries: int | None = None
    """Retries in place before an ordered record goes to the DLQ; None: without limit."""
    stall: int = 30
    """ms that a hand-over from the consumer's thread to the loop takes at most."""
    lock: int = LOCK
    configs: tuple[Config, ...] = (Config(),)
    """The first is deployed at the start, the next one by each roll-out."""
    start: str = "earliest"
    skews: tuple[int, ...] = (0,)
    """How far the clocks of pods are off, in ms: each process has one of these."""
    broker_skew: int = 0
    guard: Literal["", "epoch", "id"] = "id"
    """What a committer does before it goes on, if a request of its transaction was sent twice: nothing, make a new
    producer of its transactional id, or make that and then go on with one of another id."""
    rate: Rate | None = None
    """What an instance delivers at most."""
    terms: tuple[tuple[str, TopicTerms], ...] = ()
    """The limits of main topics."""
    forgetful: bool = False
    """Whether the coordinator of the groups is that of Kafka 3.9 (`transactions.TransactionalId`)."""
