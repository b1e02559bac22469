"""Deliver one record once, outside a sidecar: what `dev deliver` and `doctor --deliver` do.

The record takes the path of every record: rendered, sent and judged by `Push`, or by `BatchPush` where
`deliver.batch.max_size` is more than 1. So headers, content type, credentials, timeout and verdict are those of a
running sidecar. Kafka is neither read nor written: an output that the service asks for is checked by its topic's name
alone. The call runs an event loop of its own and returns when the response is judged.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from msgspec.structs import replace

from reconsume.sidecar.clock import now, wall
from reconsume.sidecar.core.outcome import NotSent, Outcome
from reconsume.sidecar.core.pace.dispatcher import Dispatcher
from reconsume.sidecar.core.pace.pace import Pace
from reconsume.sidecar.core.ports import Delivery
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.push.access import Access, ServiceCredentials, build_credentials
from reconsume.sidecar.delivery.push.batch import BatchPush, Limits
from reconsume.sidecar.delivery.push.pool import Push
from reconsume.sidecar.delivery.push.request import RenderBatch
from reconsume.sidecar.delivery.push.settings import PushSettings, push_settings_of
from reconsume.sidecar.delivery.push.target import Target, parse_target
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.policy import allowed_outputs_of
from reconsume.topics.retry_headers import Headers

TRIAL = b"Reconsume-Trial: 1\r\n"
"""The header of a trial: a service may answer such a request without doing its work."""
TRIAL_PARTITION = 2**31 - 1
"""A partition that no topic has: a service that remembers ids must never take a real record for a made-up one."""
SLACK_S = 5.0
"""Seconds beyond the client's own deadline."""


class Trial(NamedTuple):
    """One delivery. `request`: the bytes that were sent; empty if nothing was. `odd`: kinds of what looks like a
    verdict in the response and is not one (`verdict.ODD_KINDS`)."""

    request: bytes
    outcome: Outcome
    odd: tuple[str, ...]


class NotedAccess(Access):
    """The access of a running sidecar, which also notes each request. `marked`: it gets the header of a trial."""

    def __init__(self, credentials: ServiceCredentials, *, marked: bool) -> None:
        super().__init__(credentials)
        self.request, self._marked = b"", marked

    @property
    def adds_lines(self) -> bool:
        return True

    def lines_added(self, request: bytes) -> bytes:
        if self._marked:
            line, end, rest = request.partition(b"\r\n")
            request = line + end + TRIAL + rest
        self.request = super().lines_added(request) if super().adds_lines else request
        return self.request


def made_up_record(topic: str, key: bytes | None, value: bytes | None, headers: Headers | None = None) -> Record:
    """Return a record of a main topic that is not in Kafka; its id names a partition that no topic has."""
    return Record(Partition(topic, TRIAL_PARTITION), wall(), 0, wall(), key, value, headers, None)


def deliver_once(settings: Settings, record: Record, *, marked: bool = False, longest_ms: int | None = None) -> Trial:
    """Deliver a record once and return what came of it.

    `marked`: the request says by a header that it is a trial. `longest_ms`: the delivery may not take longer, whatever
    its timeout. Raises ConfigError if the URL or a file with credentials cannot be used.
    """
    try:
        target = parse_target(settings.deliver.url or "", settings.deliver.allow_remote)
    except ValueError as fault:
        raise ConfigError([f"deliver.url: {fault}"]) from None
    access = NotedAccess(build_credentials(settings.deliver), marked=marked)
    terms = push_settings_of(settings, access, allowed_outputs_of(settings))
    if longest_ms is not None:
        calls = {
            topic: replace(call, timeout_ms=call.timeout_ms and min(call.timeout_ms, longest_ms))
            for topic, call in terms.calls.items()
        }
        terms = replace(terms, timeout_ms=min(terms.timeout_ms, longest_ms), calls=calls)
    return asyncio.run(_deliver(target, terms, access, record))


async def _deliver(target: Target, terms: PushSettings, access: NotedAccess, record: Record) -> Trial:
    result: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def reply(_record: Record, outcome: Outcome, _at: Now) -> None:
        if not result.done():
            result.set_result(outcome)

    push = Push(target, terms, now, access)
    delivery: Delivery = push if terms.batch_size == 1 else _batch_of_one(push, target, terms)
    call = terms.calls.get(record.main_topic)
    timeout_ms = terms.timeout_ms if call is None or call.timeout_ms is None else call.timeout_ms
    delivery(record, reply)
    try:
        outcome = await asyncio.wait_for(result, timeout_ms / 1_000 + SLACK_S)
    except TimeoutError:
        outcome = NotSent("timeout")
    finally:
        delivery.close()
    request = b"" if isinstance(outcome, NotSent) else access.request
    return Trial(request, outcome, tuple(kind for kind, count in push.odd_verdicts.counts.items() if count))


def _batch_of_one(push: Push, target: Target, terms: PushSettings) -> BatchPush:
    """Return what sends each record at once, in the form of a batch."""
    limits = Limits(max_size=1, max_bytes=1, max_wait=0, requests=1)
    return BatchPush(
        push,
        RenderBatch(target, terms.group, terms.timeout_ms, terms.producer_key),
        limits,
        Dispatcher(Pace(1, since=now())),
        now,
        terms.calls,
    )
