"""A sidecar in which a part breaks: it says which, leaves its group in order and ends with 1; the next one goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from reconsume.sidecar.kafka.admin.cluster import Cluster
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.proof.ledger import duplicates
from tests.support.service.behaviours import OK, Answer, by_name
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

SLOW = Answer(after=4.0)
"""Longer than it takes to see the fault: the drain waits for this delivery."""


class Breaking(SidecarProcess):
    """A sidecar with faults that a signal sets off."""

    module = "tests.flow.faults.breaking_sidecar"


@contextmanager
def breaking(group: GroupTopics, service: Service, folder: Path) -> Iterator[SidecarProcess]:
    with Breaking(group, service.url, folder, overrides={"deliver": {"timeout": "8s"}}) as sidecar:
        sidecar.wait_ready()
        yield sidecar


def refusal(sidecar: SidecarProcess) -> str:
    """What `/livez` says is wrong; empty while it is 200."""
    answer = sidecar.request("GET", "/livez")
    return "" if answer.status == 200 else str(answer.json["detail"])


def clean_marks(group: GroupTopics) -> set[str]:
    """How the metadata of the main group's commits begins: `rc1.c` was left in order."""
    reader = Consumer({"bootstrap.servers": group.bootstrap, "group.id": group.group})
    places = reader.committed([TopicPartition(group.main, number) for number in range(2)], timeout=SECONDS)
    reader.close()
    return {".".join((place.metadata or "").split(".")[:2]) for place in places if place.offset >= 0}


@pytest.mark.parametrize(
    ("number", "told", "logged"),
    [
        (signal.SIGUSR1, "a fault that was put here", "in break_callback"),
        (signal.SIGHUP, "thread consumer-retry has ended", "in command"),
    ],
    ids=["a callback of the loop", "a consumer's thread"],
)
def test_what_breaks_is_named_and_ends_the_process_in_order(
    new_group: FreshGroup,
    start_service: StartService,
    start_sidecar: StartSidecar,
    tmp_path: Path,
    number: signal.Signals,
    told: str,
    logged: str,
) -> None:
    group = create_group(new_group())
    service = start_service(by_name({"first": (OK,), "slow": (SLOW,), "later": (OK,)}))
    with breaking(group, service, tmp_path) as sidecar:
        produce(group.bootstrap, group.main, [Out(b"first", b"a"), Out(b"slow", b"b")])
        sidecar.until(lambda: len(service.ledger.deliveries()) == 2, 20, "both are out or answered")
        assert sidecar.request("GET", "/livez").status == 200
        sidecar.signal(number)
        answer = sidecar.until(lambda: refusal(sidecar), 10, "/livez says so")
        assert told in answer
        if number is signal.SIGUSR1:
            assert sidecar.metric('reconsume_loop_errors_total{scope="sidecar"}') == 1
        assert sidecar.wait(30).code == 1
        log = sidecar.log()
        assert "Traceback (most recent call last)" in log
        assert logged in log
        assert "giving up: " in log
        assert told in log
    seen = Cluster({"bootstrap.servers": group.bootstrap}).groups([group.group, group.names.retry_group])
    assert seen[group.group].members == ()
    assert clean_marks(group) == {"rc1.c"}
    produce(group.bootstrap, group.main, [Out(b"later", b"c")])
    successor = start_sidecar(group, service.url)
    successor.until(lambda: len(service.ledger.taken()) == 3, 20, "the next one goes on")
    assert duplicates(service.ledger.deliveries()) == 0, "what was answered is not delivered again"
    assert successor.stop().code == 0


def test_a_process_that_a_c_library_ends_leaves_the_stacks_of_its_threads(
    new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar
) -> None:
    """Given an abort, as of an assertion in the client, then stderr names each thread's function; there is no dump."""
    sidecar = start_sidecar(create_group(new_group()), start_service(lambda _request: OK).url)
    sidecar.signal(signal.SIGABRT)
    assert sidecar.wait().code == -signal.SIGABRT
    _, _, stacks = sidecar.log().partition("Fatal Python error: Aborted")
    assert stacks.count("most recent call first") > 3
    assert "sidecar/kafka/consumer/consumer.py" in stacks
