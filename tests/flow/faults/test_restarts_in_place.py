"""A sidecar that restarts in place: what brings it to do so, what it keeps, and what others see of it meanwhile.

The recovery is an ordinary start of the same process (`runtime/restarts.py`, contract 9.7).
"""

from __future__ import annotations

import http.client
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, create_topic, delete_topics, dump, produce
from tests.support.proof.ledger import Ledger
from tests.support.service.behaviours import OK, Answer, Behaviour, Request
from tests.support.service.puller import PULL, Puller
from tests.support.sidecar.config import Config
from tests.support.sidecar.policy import CALM
from tests.support.sidecar.process import CHECKED, SidecarProcess

NOTICED = 10.0
"""Seconds in which a recreated topic is noticed."""
LATE = 10.0
"""Seconds by which a record is late at most, once the cause is noticed."""
KIP_848: Config = {"kafka": {"group.protocol": "consumer"}}


def restarts(sidecar: SidecarProcess) -> list[str]:
    """The reasons of its restarts in place, by `/status`."""
    return [restart["reason"] for restart in sidecar.status()["restarted_in_place"]]


def await_restart(sidecar: SidecarProcess, count: int, seconds: float = 60.0) -> None:
    """Wait until the process has restarted so often and has joined its group again."""
    sidecar.until(lambda: sidecar.log().count("restart-in-place:") >= count, seconds, f"{count} restarts in place")
    sidecar.until(lambda: len(restarts(sidecar)) == count, 30, "the new process responds")
    sidecar.wait_ready(30)


def recreate(group: GroupTopics, values: list[bytes]) -> None:
    delete_topics(group.bootstrap, group.main)
    create_topic(group.bootstrap, group.main, 2)
    produce(group.bootstrap, group.main, [Out(value, partition=at % 2) for at, value in enumerate(values)])


@pytest.mark.parametrize("protocol", [{}, KIP_848], ids=["classic", "kip-848"])
def test_a_main_topic_that_is_recreated_under_a_running_sidecar_loses_nothing_of_its_new_log(
    protocol: Config, new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given a delivery of the former log that does not end, then each record of the new log comes at most 10 s after
    the recreation was noticed, and the pid stays."""
    group, answer = create_group(new_group(1, (1_000,)), partitions=2), threading.Event()

    def script(request: Request) -> Behaviour | Answer:
        return Answer(until=answer) if request.value == b"old-hangs" else OK

    service = start_service(script)
    old = [b"old-%d" % number for number in range(20)]
    produce(group.bootstrap, group.main, [Out(value, partition=at % 2) for at, value in enumerate(old)])
    sidecar = start_sidecar(group, service.url, overrides={**CALM, **protocol})
    sidecar.until(lambda: {*old} <= {d.value for d in service.ledger.deliveries()}, 30, "the former log is delivered")
    produce(group.bootstrap, group.main, [Out(b"old-hangs", partition=0)])
    sidecar.until(lambda: b"old-hangs" in {d.value for d in service.ledger.deliveries()}, 30, "one hangs")
    pid, begun = sidecar.pid, time.time()
    new = [b"new-%d" % number for number in range(40)]
    recreate(group, new)
    sidecar.wait_log("restart-asked:", 3 * NOTICED)
    sidecar.until(lambda: {*new} <= {d.value for d in service.ledger.deliveries()}, LATE, "the new log is delivered")
    answer.set()
    assert sidecar.pid == pid
    assert psutil.Process(pid).create_time() < begun
    sidecar.until(lambda: restarts(sidecar) == ["topic-recreated"], 30, "it has restarted, maybe behind the delivery")
    sidecar.wait_ready()
    assert sidecar.metric('reconsume_restarts_in_place_total{reason="topic-recreated"}') == 1
    assert sidecar.stop().code == 0


class OnDemand(SidecarProcess):
    """A sidecar that restarts in place when a signal asks for it."""

    module = "tests.flow.faults.restarting_sidecar"

    def restart(self, count: int, number: signal.Signals = signal.SIGUSR1) -> None:
        """Have it restart, for the `count`th time, and wait for that."""
        self.signal(number)
        await_restart(self, count)


@contextmanager
def on_demand(
    group: GroupTopics, url: str, folder: Path, overrides: Config | None = None, most: int = 5
) -> Iterator[OnDemand]:
    environ = {"TESTS_MOST_RESTARTS": str(most), **CHECKED}
    with OnDemand(group, url, folder, overrides={**CALM, **(overrides or {})}, environ=environ) as sidecar:
        sidecar.wait_ready()
        yield sidecar


def test_the_sixth_restart_within_ten_minutes_ends_the_process_with_75(
    new_group: FreshGroup, start_service: StartService, tmp_path: Path
) -> None:
    """Given five restarts, then `/status` and the metric know all of them."""
    group, service = create_group(new_group(), 1), start_service(lambda _: OK)
    with on_demand(group, service.url, tmp_path) as sidecar:
        for count in range(1, 6):
            sidecar.restart(count, signal.SIGHUP if count == 3 else signal.SIGUSR1)
        assert restarts(sidecar) == ["client-deaf", "client-deaf", "queue-topic", "client-deaf", "client-deaf"]
        assert sidecar.metric('reconsume_restarts_in_place_total{reason="client-deaf"}') == 4
        assert sidecar.metric('reconsume_restarts_in_place_total{reason="queue-topic"}') == 1
        sidecar.signal(signal.SIGUSR1)
        assert sidecar.wait(30).code == 75
        assert "restarts-used-up" in sidecar.log()


@pytest.mark.long
def test_after_ten_restarts_descriptors_and_threads_are_those_of_the_first(
    new_group: FreshGroup, start_service: StartService, tmp_path: Path
) -> None:
    group, service = create_group(new_group(), 1), start_service(lambda _: OK)
    with on_demand(group, service.url, tmp_path, most=99) as sidecar:
        process, counts = psutil.Process(sidecar.pid), list[tuple[int, int]]()
        for count in range(1, 11):
            sidecar.restart(count)
            produce(group.bootstrap, group.main, [b"%d" % count])
            sidecar.until(lambda: len(service.ledger.taken()) >= count, 30, "it delivers")  # noqa: B023
            counts.append((process.num_fds(), process.num_threads()))
        descriptors, threads = zip(*counts, strict=True)
        assert max(descriptors[5:]) <= max(descriptors[:5]) + 3, counts
        assert max(threads[5:]) <= max(threads[:5]) + 3, counts
        assert sidecar.stop().code == 0


def test_a_record_in_flight_is_delivered_again_with_its_key_and_no_crash_is_counted(
    new_group: FreshGroup, start_service: StartService, tmp_path: Path
) -> None:
    """Given a record that hangs over three restarts for which something is broken, where two crashes make a dead
    letter, then it is delivered four times under one key, and is no dead letter."""
    group, answer = create_group(new_group(), 1), threading.Event()
    service = start_service(lambda _: Answer(until=answer))
    produce(group.bootstrap, group.main, [b"hangs"])
    with on_demand(
        group, service.url, tmp_path, {"retry": {"max_deaths": 2}, "deliver": {"timeout": "60s"}}
    ) as sidecar:
        for count in range(1, 4):
            sidecar.until(lambda: len(service.ledger.deliveries()) == count, 30, "it is in flight")  # noqa: B023
            sidecar.restart(count)
        sidecar.until(lambda: len(service.ledger.deliveries()) == 4, 30, "it is in flight again")
        answer.set()
        sidecar.until(lambda: bool(service.ledger.taken()), 30, "it is taken")
        assert {d.times for d in service.ledger.deliveries()} == {0}
        assert len({d.idempotency_key for d in service.ledger.deliveries()}) == 1
        assert sidecar.stop().code == 0
    assert not dump(group.bootstrap, group.dlq)
    assert "taken-up" not in sidecar.log()


def test_a_lease_is_waited_for_if_nothing_is_broken_and_its_handle_is_fenced_otherwise(
    new_group: FreshGroup, tmp_path: Path, ledger: Ledger
) -> None:
    group = create_group(new_group(), 1)
    produce(group.bootstrap, group.main, [b"first"])
    with on_demand(group, "", tmp_path, PULL) as sidecar:
        puller = Puller(sidecar, ledger)
        (first,) = until(lambda: puller.receive(1, "60s", "1s"), 30, "a lease")
        sidecar.signal(signal.SIGHUP)
        sidecar.until(lambda: sidecar.status()["state"] == "draining", 20, "it drains")
        assert puller.ack(first) == ["ok"]
        await_restart(sidecar, 1)
        produce(group.bootstrap, group.main, [b"second"])
        (second,) = until(lambda: puller.receive(1, "60s", "1s"), 30, "a lease of the next")
        assert second.value == b"second"
        sidecar.restart(2)
        (again,) = until(lambda: puller.receive(1, "60s", "1s"), 30, "the same again")
        assert (again.value, again.times) == (b"second", 0)
        assert puller.ack(second) != ["ok"]
        assert puller.ack(again) == ["ok"]
        assert sidecar.stop().code == 0


def test_a_broadcast_misses_nothing_of_what_is_written_while_it_restarts(
    new_group: FreshGroup, start_service: StartService, tmp_path: Path
) -> None:
    """Its place is in memory alone, so it begins some time before the restart: what came since then comes twice."""
    group, service, ended = create_group(new_group(), 2), start_service(lambda _: OK), threading.Event()
    written = list[bytes]()

    def write() -> None:
        while not ended.is_set():
            written.append(b"%d" % len(written))
            produce(group.bootstrap, group.main, [Out(written[-1], partition=len(written) % 2)])
            ended.wait(0.05)

    with on_demand(group, service.url, tmp_path, {"deliver": {"broadcast": True}}) as sidecar:
        produce(group.bootstrap, group.main, [b"first"])
        sidecar.until(lambda: len(service.ledger.deliveries()) == 1, 30, "it delivers")
        writing = threading.Thread(target=write)
        writing.start()
        try:
            sidecar.restart(1)
        finally:
            ended.set()
            writing.join()
        sidecar.until(lambda: {d.value for d in service.ledger.deliveries()} >= {*written}, 30, "all came")
        assert sidecar.stop().code == 0


def test_probes_during_a_restart_are_answered_late_and_never_refused(
    new_group: FreshGroup, start_service: StartService, tmp_path: Path
) -> None:
    """Given a caller that keeps its connection, and opens another one when that is closed between two calls, then each
    call is answered with 200: by the former process or by the next one."""
    group, service = create_group(new_group(), 1), start_service(lambda _: OK)
    answers, failures, ended = list[int](), list[str](), threading.Event()

    with on_demand(group, service.url, tmp_path) as sidecar:

        def probe() -> None:
            kept = http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=30)
            while not ended.is_set():
                path = ("/livez", "/readyz")[len(answers) % 2]
                for _ in range(2):  # a caller may repeat a call on a kept connection that was closed
                    was_new = kept.sock is None
                    try:
                        kept.request("GET", path)
                        answer = kept.getresponse()
                        answer.read()
                    except (http.client.HTTPException, OSError) as failure:
                        kept.close()
                        if was_new:
                            failures.append(repr(failure))
                    else:
                        answers.append(answer.status)
                        break
                ended.wait(0.01)
            kept.close()

        probing = threading.Thread(target=probe)
        probing.start()
        try:
            for count in range(1, 4):
                sidecar.restart(count)
        finally:
            ended.set()
            probing.join()
        assert failures == []
        assert set(answers) == {200}
        assert sidecar.stop().code == 0


@pytest.mark.parametrize("tries", [3, pytest.param(8, marks=pytest.mark.long)])
def test_a_sigterm_at_any_moment_of_a_restart_ends_the_process_in_order(
    tries: int, new_group: FreshGroup, start_service: StartService, tmp_path: Path
) -> None:
    """Also one that comes while the one program ends and the next one is not there yet."""
    group, service = create_group(new_group(), 1), start_service(lambda _: OK)
    for number in range(tries):
        with on_demand(group, service.url, tmp_path / str(number)) as sidecar:
            sidecar.signal(signal.SIGUSR1)
            sidecar.wait_log("restart-in-place:", 30)
            time.sleep(2.0 * number / tries)
            assert sidecar.stop(30).code == 0, number
