"""Call the service as the sidecar does: by its own push client, with its connections, timeouts and verdicts."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from reconsume.sidecar.clock import now, wall
from reconsume.sidecar.core.outcome import NotSent, Outcome
from reconsume.sidecar.core.record import Now, Partition, Record
from reconsume.sidecar.delivery.push.access import Access
from reconsume.sidecar.delivery.push.health_check import by_status
from reconsume.sidecar.delivery.push.pool import Push
from reconsume.sidecar.delivery.push.request import Render
from reconsume.sidecar.delivery.push.response_reader import Interpret
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import Target
from reconsume.sidecar.delivery.verdict import HTML
from reconsume.sidecar.settings.deliver import Subscription
from reconsume.sidecar.settings.model import Settings

TRIAL = b"Reconsume-Trial: 1\r\n"
"""The header of a made-up record: a service may answer such a request without doing its work."""
TRIAL_VALUE = b'{"reconsume": "trial"}'
TRIAL_PARTITION = 2**31 - 1
"""A partition that no topic has: a service that remembers ids must never take a real record for the trial."""
LONGEST = 15_000
"""ms that a trial may take: a person waits for it."""
SLACK = 5.0
"""Seconds beyond the client's own deadline."""


def asked_health(target: Target, timeout: int, access: Access) -> Outcome:
    """Return what the health URL's answer means. `timeout`: ms; `access`: how it is called."""
    request = f"GET {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nAccept: */*\r\n\r\n".encode("ascii")
    push = PushSettings("", timeout, 1, connect_timeout_ms=timeout)
    return asyncio.run(_sent(target, push, request, by_status, access)).outcome


class Trial(NamedTuple):
    """What the service says to a made-up record. `html`: it is a page of HTML, as a proxy that wants a login sends."""

    outcome: Outcome
    html: bool = False


def tried(target: Target, settings: Settings, topic: Subscription, access: Access) -> Trial:
    """Deliver a made-up record of this topic, once; return what comes back. Kafka is neither read nor written."""
    deliver = settings.deliver
    push = PushSettings(
        group=settings.group,
        timeout_ms=min(deliver.timeout, LONGEST),
        concurrency=1,
        forward_headers=deliver.forward_headers,
        verdict_bodies=deliver.verdicts == "all",
        failure_text=deliver.failure_text,
        content_type=deliver.content_type if topic.content_type is None else topic.content_type,
        envelope=deliver.envelope or deliver.batch.max_size > 1,
        dead_letter_statuses=frozenset(deliver.dead_letter_statuses),
        throttle_statuses=frozenset(deliver.throttle_statuses),
        batch_size=deliver.batch.max_size,
        longest_answer=deliver.max_answer,
        reserved=access.reserved,
        written=access.written,
    )
    record = Record(Partition(topic.name, TRIAL_PARTITION), wall(), 0, wall(), None, TRIAL_VALUE, None, None)
    line, _, rest = Render(target, push)(record).partition(b"\r\n")
    return asyncio.run(_sent(target, push, line + b"\r\n" + TRIAL + rest, None, access, record))


async def _sent(
    target: Target,
    settings: PushSettings,
    request: bytes,
    judge: Interpret | None,
    access: Access,
    record: Record | None = None,
) -> Trial:
    result: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def reply(_record: Record | None, outcome: Outcome, _at: Now) -> None:
        if not result.done():
            result.set_result(outcome)

    push = Push(target, settings, now, access)
    push.post((record, reply), request, judge)
    try:
        outcome = await asyncio.wait_for(result, settings.timeout_ms / 1_000 + SLACK)
        return Trial(outcome, push.odd_verdicts.counts[HTML] > 0)
    except TimeoutError:
        return Trial(NotSent("timeout"))
    finally:
        push.close()
