"""The push client beside HTTP servers that people run: whatever they do with connections, no attempt is lost by it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Outcome
from tests.support.rings import inner
from tests.support.service.real_services import IDLE, SERVICES, RealService, real_service
from tests.support.sidecar.push_client import a_push, a_record, deliver, run, settled

RECORDS = 2_000
AT_ONCE = 16
GUNICORNS = [name for name in SERVICES if name.startswith("gunicorn")]
RELOADED = ("nginx", *GUNICORNS)


def pushed(service: RealService, *, reloads: int = 0, idle: float = 0.03) -> Counter[Outcome]:
    """The outcomes of many records, pushed at once and one by one, with pauses in which connections are idle.

    `idle`: seconds of the shortest pause, about as long as some of them keep an idle connection.
    """
    found: Counter[Outcome] = Counter()

    async def work() -> None:
        push = a_push(service.url)
        numbers = iter(range(RECORDS))

        async def worker(number: int) -> None:
            for offset in numbers:
                found[await deliver(push, a_record(offset))] += 1
                if offset % 50 == number:
                    await asyncio.sleep(idle + number / 500)
                if reloads and offset % (RECORDS // reloads) == 0:
                    service.reload()

        await asyncio.gather(*(worker(number) for number in range(AT_ONCE)))
        push.close()
        await settled(lambda: push.connections == 0)

    run(work)
    return found


@pytest.mark.parametrize("name", inner("uvicorn", [name for name in SERVICES if name not in RELOADED]))
def test_a_service_that_closes_kept_connections_costs_no_attempt(name: str, tmp_path: Path) -> None:
    """Given a server that closes connections after some requests or when they are idle, then every record is done."""
    with real_service(name, tmp_path) as service:
        assert pushed(service) == {COMMITTED: RECORDS}


@pytest.mark.long
@pytest.mark.parametrize("name", GUNICORNS)
def test_a_server_whose_workers_end_after_some_requests_or_when_idle_costs_at_most_one_in_a_thousand(
    name: str, tmp_path: Path
) -> None:
    """Given Flask under gunicorn, and pauses around the time for which it keeps a connection, then none is counted."""
    with real_service(name, tmp_path) as service:
        found = pushed(service, idle=IDLE - 0.015)
    assert found[COMMITTED] >= RECORDS * 0.999, found


@pytest.mark.parametrize("name", inner("nginx", RELOADED))
def test_a_reload_costs_at_most_one_attempt_in_a_thousand(name: str, tmp_path: Path) -> None:
    """Given a server that is reloaded again and again, and that closes connections besides, then nothing is counted."""
    with real_service(name, tmp_path) as service:
        found = pushed(service, reloads=10)
    assert found[COMMITTED] >= RECORDS * 0.999, found
