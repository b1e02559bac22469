"""A drained sidecar that nobody stops: it must not stay, doing nothing and looking well."""

from __future__ import annotations

import asyncio
from pathlib import Path

from reconsume.sidecar.runtime.sidecar import Sidecar
from tests.support.service.service import free_port
from tests.support.sidecar.settings import good

WITHIN = 60.0


def alone(folder: Path, timeout: float, *, stopped: bool) -> tuple[int, float]:
    """Drain a sidecar whose Kafka is away; its code, and how long it stayed after its drain."""
    settings = good(
        folder,
        f"kafka.bootstrap.servers=127.0.0.1:{free_port()}",
        f"api={{listen: 'unix:{folder}/api.sock', probe_listen: null}}",
        "drain_timeout=100ms",
    )

    async def run() -> tuple[int, float]:
        sidecar, stop, clock = Sidecar([settings], drained_for=0.5), asyncio.Event(), asyncio.get_running_loop().time
        await sidecar.start()
        watching = asyncio.create_task(sidecar.watch(stop))
        await sidecar.drain(timeout)
        begun = clock()
        if stopped:
            stop.set()
        code = await asyncio.wait_for(watching, WITHIN)
        took = clock() - begun
        await sidecar.stop()
        return code, took

    return asyncio.run(run())


def test_a_drained_sidecar_that_nobody_stops_ends_so_that_its_container_begins_anew(tmp_path: Path) -> None:
    code, took = alone(tmp_path, 0.1, stopped=False)
    assert code == 1, "a container that restarts on failure alone must begin anew too"
    assert took >= 0.3


def test_a_drained_sidecar_that_is_stopped_in_time_ends_with_0(tmp_path: Path) -> None:
    assert alone(tmp_path, 0.1, stopped=True)[0] == 0
