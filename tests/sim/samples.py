"""Policies and records to try the core with."""

from __future__ import annotations

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.core.record import Partition, Record, weight_of
from reconsume.topics.levels import TABLE, build_ladder
from reconsume.topics.names import Names
from reconsume.topics.retry_headers import BadHeader, Headers, RetryState, parse_retry_headers

WALL = 1_763_690_000_000
"""Epoch ms at which every test begins."""
ORDERS = Partition("orders", 0)


def policy(
    *,
    ladder: str | tuple[int, ...] = "rocketmq",
    table: tuple[int, ...] = TABLE,
    retries: int = 16,
    topics: tuple[str, ...] = ("orders",),
    template: str = "{group}",
    deaths: int | None = None,
    queued: bool = False,
) -> Policy:
    """A policy of group `billing`; without `deaths` nobody suspects a record of having killed anybody.

    The named ladders are taken over `table`, so that a story of few levels has few. Each delay has a level, unless what
    fails waits in a queue (`queued`).
    """
    over = {"rocketmq": table[2:] or table[-1:], "pulsar": table}
    steps = build_ladder(over.get(ladder, ladder) if isinstance(ladder, str) else ladder)
    return Policy(
        names=Names("billing", template),
        topics=topics,
        ladder=steps,
        table=table,
        delays=() if queued else tuple(sorted({*table, *steps.delays})),
        max_reconsume_times=retries,
        max_deaths=deaths,
        instance="billing-0",
        queued=queued,
    )


def waits(policy: Policy) -> dict[str, int]:
    """The retry lane's topics and their delays in ms."""
    levels = {policy.names.level(delay, topic): delay for delay in policy.delays for topic in policy.topics}
    return {**levels, policy.names.ready: 0}


def record(
    offset: int = 0,
    *,
    source: Partition = ORDERS,
    epoch: int = 1,
    timestamp: int = WALL,
    key: bytes | None = b"k",
    value: bytes | None = b"v",
    headers: Headers | None = None,
    life: RetryState | None = None,
    fault: str = "",
) -> Record:
    """A record as the consumer would bring it."""
    weight = weight_of(key, value, headers, life)
    return Record(source, offset, epoch, timestamp, key, value, headers or [], life, fault, weight)


def life(times: int = 1, due_at: int = WALL, **more: object) -> RetryState:
    """The life of a record of `orders` that has failed `times` times."""
    fields: dict[str, object] = {"timestamp": WALL - 5, "first_failed_at": WALL - 3, "reason": "http-500: no"}
    return RetryState(id="orders:0:7", topic="orders", times=times, due_at=due_at, **{**fields, **more})  # type: ignore[arg-type]


def read(headers: Headers, policy: Policy, wall: int = WALL) -> tuple[RetryState | None, str]:
    """What our headers say, as the consumer of the retry lane reads them."""
    found = parse_retry_headers(headers, policy, policy.latest_due(wall))
    return (None, f"bad-header: {found.text}") if isinstance(found, BadHeader) else (found, "")
