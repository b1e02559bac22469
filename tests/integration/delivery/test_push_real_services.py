"""The push client beside HTTP servers that people run: whatever they do with connections, no attempt is lost by it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from sidecar.core.outcome import COMMITTED, Outcome
from tests.support.rings import inner
from tests.support.service.real_services import SERVICES, RealService, real_service
from tests.support.sidecar.push_client import a_push, a_record, deliver, run, settled

RECORDS = 2_000
AT_ONCE = 16


def pushed(service: RealService, *, reloads: int = 0) -> Counter[Outcome]:
    """The outcomes of many records, pushed at once and one by one, with pauses in which connections are idle."""
    found: Counter[Outcome] = Counter()

    async def work() -> None:
        push = a_push(service.url, concurrency=AT_ONCE)
        numbers = iter(range(RECORDS))

        async def worker(number: int) -> None:
            for offset in numbers:
                found[await deliver(push, a_record(offset))] += 1
                if offset % 50 == number:
                    await asyncio.sleep(0.03 + number / 500)  # about as long as some of them keep an idle connection
                if reloads and offset % (RECORDS // reloads) == 0:
                    service.reload()

        await asyncio.gather(*(worker(number) for number in range(AT_ONCE)))
        push.close()
        await settled(lambda: push.connections == 0)

    run(work)
    return found


@pytest.mark.parametrize("name", inner("uvicorn", [name for name in SERVICES if name != "nginx"]))
def test_a_service_that_closes_kept_connections_costs_no_attempt(name: str, tmp_path: Path) -> None:
    """Given a server that closes connections after some requests or when they are idle, then every record is done."""
    with real_service(name, tmp_path) as service:
        assert pushed(service) == {COMMITTED: RECORDS}


def test_a_reload_costs_at_most_one_attempt_in_a_thousand(tmp_path: Path) -> None:
    """Given a proxy that is reloaded again and again, and that closes connections besides, then nothing is counted."""
    with real_service("nginx", tmp_path) as service:
        found = pushed(service, reloads=10)
    assert found[COMMITTED] >= RECORDS * 0.999, found
