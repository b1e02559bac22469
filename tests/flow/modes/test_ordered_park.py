"""`retry.ordered_exhausted: park` on a real broker: a key whose retries are used up stands until a person decides."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, dump, produce
from tests.support.proof.audited import violations
from tests.support.proof.quiet import await_quiet
from tests.support.service.behaviours import Answer, Behaviour, Request
from tests.support.sidecar.config import Config
from topics.events import Event, State, decode_event
from topics.names import Kind
from topics.retry_headers import ORIGIN_MESSAGE_ID
from topics.retry_order import RETRY_PARKED

PARK: Config = {
    "deliver": {"order": "key", "outage_failures": None},
    "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 1, "ordered_exhausted": "park"},
    "kafka": {"session.timeout.ms": 6_000},
}


class Bad:
    """Records whose value begins with `bad` fail until `well` is set."""

    def __init__(self) -> None:
        self.well = threading.Event()

    def __call__(self, request: Request) -> Behaviour:
        return Answer(500 if (request.value or b"").startswith(b"bad") and not self.well.is_set() else 200)


@pytest.fixture
def group(new_group: FreshGroup) -> GroupTopics:
    return create_group(replace(new_group(), delays=(), queued=True), 1, also=[Kind.POLICY])


def events_of(group: GroupTopics, ident: str) -> list[Event]:
    found = (decode_event(row.value) for row in dump(group.bootstrap, group.names.events) if row.key == ident.encode())
    return [event for event in found if isinstance(event, Event)]


def is_parked(group: GroupTopics, ident: str) -> Callable[[], bool]:
    return lambda: any(event.parked for event in events_of(group, ident))


def put(group: GroupTopics, *records: tuple[bytes, bytes]) -> list[str]:
    """Produce records, by value and key, and return their ids."""
    places = produce(group.bootstrap, group.main, [Out(value, key) for value, key in records])
    return [f"{group.main}:{number}:{offset}" for number, offset in places]


def test_a_parked_head_holds_its_key_over_kills_until_the_setting_gives_it_up(
    group: GroupTopics, start_service: StartService, start_sidecar: StartSidecar, tmp_path: Path
) -> None:
    """Its copy says so and has no due time; nothing of its key is delivered, not by a new owner either, and all others
    go on. Back at `dead-letter` it is a dead letter, and the next of its key goes."""
    service = start_service(Bad())
    sidecar = start_sidecar(group, service.url, overrides=PARK)
    bad, behind, free = put(group, (b"bad", b"a"), (b"behind", b"a"), (b"free", b"b"))
    sidecar.until(is_parked(group, bad), 30, "the head is parked")
    sidecar.kill()
    sidecar.start()
    sidecar.wait_ready()
    (after,) = put(group, (b"after", b"b"))
    sidecar.until(lambda: bool(service.ledger.of(after)), 30, "the new owner delivers other keys")
    assert [d.times for d in service.ledger.of(bad)] == [0, 1]
    assert (len(service.ledger.of(behind)), len(service.ledger.of(free))) == (0, 1)
    copies = [dict(row.headers) for row in dump(group.bootstrap, group.queues[0])]
    parked = [copy for copy in copies if RETRY_PARKED in copy]
    assert {copy[ORIGIN_MESSAGE_ID] for copy in parked} == {bad.encode()}
    assert {(copy["RETRY_DUE_AT"], copy["RECONSUMETIMES"]) for copy in parked} == {(b"0", b"1")}
    waiting, told = events_of(group, bad)
    assert (told.state, told.times, told.due, told.level) == (State.WAITING_RETRY, waiting.times, 0, None)
    assert told.at > waiting.at
    assert sidecar.stop().code == 0
    given_up: Config = {**PARK, "retry": {"ordered_ladder": ["1s"], "max_reconsume_times": 1}}
    other = start_sidecar(group, service.url, "other", overrides=given_up)
    other.until(lambda: bool(service.ledger.of(behind)), 30, "the next of the key goes")
    await_quiet(group, 30)
    assert other.stop().code == 0
    (letter,) = dump(group.bootstrap, group.dlq)
    assert (dict(letter.headers)[ORIGIN_MESSAGE_ID], RETRY_PARKED in dict(letter.headers)) == (bad.encode(), False)
    assert len(service.ledger.of(bad)) == 2
    assert violations(group, tmp_path, given_up) == []
