"""Relay: the shop reads Kafka itself, main topic and ready topic, and posts failed orders to the sidecar.

An offset is committed when all records before it are handled. The shop goes down like a service that is redeployed: it
first finishes the orders that it has begun. (A service that crashes between a post and its commit posts again: one copy
more.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import NamedTuple

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from reconsume.sidecar.background import on_own_thread
from reconsume.sidecar.dev.demo.ledger import Verdict, digest_of
from reconsume.sidecar.dev.demo.shop.behaviour import Answer, answer_to
from reconsume.sidecar.dev.demo.shop.order_log import Order, OrderLog, case_of
from reconsume.sidecar.dev.demo.shop.web import post
from reconsume.sidecar.kafka.clients import make_client
from reconsume.sidecar.kafka.messages import read_headers
from reconsume.topics.retry_headers import LARGEST_LONG, BadHeader, Headers, parse_retry_headers

MOST, PAGES = 64, 64
"""Records that are read at once, and how many such pages are worked on at once: a stuck order must not delay the
others."""
READ_SECONDS = 0.1
PATIENCE_SECONDS = 2.0
"""Seconds that the shop itself gives an order; then it fails with reason `timeout`."""
LOOK_SECONDS = 0.2
CREATED = 201


class RetryRequest(NamedTuple):
    """The action that the sidecar shall take for an order that failed."""

    verdict: Verdict
    reason: str
    delay: str | None = None
    level: int | None = None


class Posted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a post: the record as it was read, and the action that the sidecar shall take (contract 6.10)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key_base64: bytes | None
    value_base64: bytes | None
    headers: Headers
    delay: str | None = None
    level: int | None = None
    reason: str | None = None


class Page(NamedTuple):
    """Records that were read together, and the work on them."""

    work: asyncio.Future[list[None]]
    messages: list[Message]

    @property
    def ends(self) -> list[TopicPartition]:
        """The next offset of each partition after these records."""
        ends = {(message.topic(), message.partition()): message.offset() for message in self.messages}
        return [
            TopicPartition(topic or "", partition or 0, (offset or 0) + 1)
            for (topic, partition), offset in ends.items()
        ]


class RelayFront:
    """Reads `topics`, main topic first, as a member of the group; works on many at once, commits in order."""

    def __init__(
        self, counter: OrderLog, port: int, tasks: asyncio.TaskGroup, bootstrap: str, group: str, topics: list[str]
    ) -> None:
        self._counter, self._port, self._tasks, self._topics = counter, port, tasks, topics
        self._config: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",  # records that the sidecar has not committed must not be handled
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
        }
        self._open = False
        self._reading: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Join the group and start to read."""
        self._open = True
        self._counter.opened()
        self._reading = self._tasks.create_task(self._read())

    async def close(self) -> None:
        """Finish the records that were read, commit them, and leave the group."""
        self._open = False
        if self._reading is not None:
            await self._reading
        self._counter.closed()

    async def _read(self) -> None:
        consumer = make_client(Consumer, self._config)
        consumer.subscribe(self._topics)
        pages: deque[Page] = deque()
        while self._open or pages:
            if self._open and len(pages) < PAGES:
                messages = await on_own_thread("relay", lambda: consumer.consume(MOST, READ_SECONDS))
                if messages:
                    pages.append(Page(asyncio.gather(*map(self._handle, messages)), messages))
            else:
                await asyncio.wait([pages[0].work])
            while pages and pages[0].work.done():
                page = pages.popleft()
                page.work.result()
                await on_own_thread("relay", partial(consumer.commit, offsets=page.ends, asynchronous=False))
        await on_own_thread("relay", consumer.close)

    async def _handle(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        headers = read_headers(message) or []
        order = order_of(message, headers, self._topics[0])
        number = self._counter.came(order)
        answer = answer_to(order.case, order.times)
        await asyncio.sleep(min(answer.after, PATIENCE_SECONDS))
        request = retry_request_of(answer)
        if request is not None:
            await self._post(posted(message, headers, request))
        self._counter.answered(number, "commit" if request is None else request.verdict)

    async def _post(self, body: Posted) -> None:
        """Post until the sidecar has the record. Raises RuntimeError if it refuses the record for good."""
        while True:
            try:
                status, answer = await post(self._port, "/v1/retry", msgspec.json.encode(body))
            except (OSError, EOFError):
                status, answer = 503, b""
            if status == CREATED:
                return
            if status < 500:
                raise RuntimeError(f"the sidecar answered {status}: {answer.decode(errors='replace')}")
            await asyncio.sleep(LOOK_SECONDS)


def retry_request_of(answer: Answer) -> RetryRequest | None:
    """Return the request to the sidecar for an order that failed; None if the order is taken."""
    if answer.after > PATIENCE_SECONDS:
        return RetryRequest("retry", "timeout")
    if answer.verdict == "commit":
        return None
    level = -1 if answer.verdict == "dead-letter" else None
    return RetryRequest(answer.verdict, answer.reason, answer.delay or None, level)


def order_of(message: Message, headers: Headers, main: str) -> Order:
    """Return the order in a record. Raises ValueError if its retry headers are malformed.

    The sidecar's headers count only on the ready topic: on the main topic any producer may have written them.
    """
    case, digest = case_of(headers), digest_of(message.value())
    if message.topic() == main:
        return Order(f"{main}:{message.partition()}:{message.offset()}", 0, case, digest)
    retry_state = parse_retry_headers(headers, [main], LARGEST_LONG)
    if isinstance(retry_state, BadHeader):
        raise ValueError(retry_state.text)
    return Order(retry_state.id, retry_state.times, case, digest)


def posted(message: Message, headers: Headers, request: RetryRequest) -> Posted:
    """Return the body of a post."""
    return Posted(
        topic=message.topic() or "",
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        timestamp=message.timestamp()[1],
        key_base64=message.key(),
        value_base64=message.value(),
        headers=headers,
        delay=request.delay,
        level=request.level,
        reason=request.reason,
    )
