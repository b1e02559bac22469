"""Settling on a real broker without an owner: what is written, what is said, and when nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.dlq.dead_letters import DeadLetters
from reconsume.sidecar.dlq.settle import Settler, waiting_in
from reconsume.sidecar.dlq.settle_request import Decided, NotWaitingError, SettleRequest
from reconsume.sidecar.dlq.settlements import SettlementWriter
from reconsume.sidecar.errors import BrokerError, LetterError
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.events import Event
from reconsume.topics.names import Kind
from reconsume.topics.partition import Partition
from tests.integration.freed.measure import uncollected, usage
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.queue_copies import queue_copy
from tests.support.kafka.topic_io import dump, produce
from tests.ui.scene import settings_of


@pytest.fixture(scope="module")
def group(kafka: Broker) -> GroupTopics:
    """An ordered group in which two records of a key wait."""
    group = create_group(replace(fresh_group(kafka.bootstrap, delays=()), queued=True), 1, also=[Kind.POLICY])
    copies = [queue_copy(group.queues[0], b"ada", at, at == 0, topic=group.main) for at in range(2)]
    produce(group.bootstrap, group.queues[0], copies)
    return group


def clients() -> frozenset[str]:
    """The main threads of librdkafka's clients in this process, by their ids."""
    return frozenset(task.name for task in Path("/proc/self/task").iterdir() if name_of(task) == "rdk:main")


def name_of(task: Path) -> str:
    """The name of a thread; empty if it has ended since it was listed."""
    try:
        return (task / "comm").read_text(encoding="utf-8").strip()
    except OSError:  # FileNotFoundError, or ProcessLookupError amid the read
        return ""


class Events:
    """No events, and from the second reading on an events topic that cannot be read."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self, _ident: str, _since: int) -> Sequence[Event]:
        self.readings += 1
        if self.readings > 1:
            raise BrokerError("the events did not come")
        return ()


@pytest.fixture(scope="module")
def there(group: GroupTopics, policy: Policy) -> DeadLetters:
    return DeadLetters({"bootstrap.servers": group.bootstrap}, policy)


@pytest.fixture(scope="module")
def policy(group: GroupTopics, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    return build_policy(settings_of(group, tmp_path_factory.mktemp("settler")), "test")


def seen(ident: str, how: str = "commit") -> SettleRequest:
    return SettleRequest(ident, how, "seen", "ann")


def written(group: GroupTopics) -> list[bytes | None]:
    return [row.key for row in dump(group.bootstrap, group.names.policy)]


def test_what_is_written_is_not_called_lost_where_its_event_cannot_be_read(
    group: GroupTopics, there: DeadLetters
) -> None:
    events, ident = Events(), f"{group.main}:0:1"
    settler = Settler(there, "key", events)
    decided = settler.decide(settler.find(ident, "commit"), seen(ident), within=0.5)
    assert (decided, events.readings > 1) == (Decided(None), True)
    assert written(group)[-1] == b"settle/" + ident.encode()


def test_nothing_is_written_for_what_cannot_be_settled_or_is_not_read_in_time(
    group: GroupTopics, there: DeadLetters
) -> None:
    before, head = written(group), f"{group.main}:0:0"
    settler = Settler(there, "key", lambda _ident, _since: ())
    for ident in (f"{group.main}:0:9", f"{group.main}:7:0", "others:0:0", "none", ""):
        with pytest.raises(NotWaitingError):
            settler.settle(seen(ident))
    with pytest.raises(LetterError, match=head):
        settler.settle(seen(f"{group.main}:0:1", "retry-now"))
    with pytest.raises(BrokerError, match="nothing was decided"):
        settler.settle(seen(head), within=1e-6)
    with pytest.raises(NotWaitingError):
        Settler(there, None, lambda _ident, _since: ()).settle(seen(head))
    assert written(group) == before


def test_what_is_kept_of_a_queue_has_no_value(group: GroupTopics, there: DeadLetters) -> None:
    kept = waiting_in(there, Partition(group.queues[0], 0), lambda _read, _of: None)
    assert {ident: (record.key, record.value) for ident, record in kept.items()} == {
        f"{group.main}:0:{offset}": (b"ada", None) for offset in range(2)
    }


def test_calls_leave_no_client_behind_whether_they_settle_or_not(group: GroupTopics, there: DeadLetters) -> None:
    """In a sidecar each client is seven threads, and a reference cycle stays for a minute."""
    settler = Settler(there, "key", lambda _ident, _since: ())
    head = f"{group.main}:0:0"

    def calls() -> None:
        settler.decide(settler.find(head, "commit"), seen(head), within=0.01)
        with pytest.raises(NotWaitingError):
            settler.settle(seen(f"{group.main}:0:9"))
        with pytest.raises(LetterError):
            settler.settle(seen(f"{group.main}:0:1", "retry-now"))
        with pytest.raises(BrokerError):
            settler.settle(seen(head), within=1e-6)

    with uncollected():
        calls()
        before = usage()
        for _ in range(5):
            calls()
        more = usage().objects - before.objects
    assert not more


def test_the_client_of_a_writer_ends_with_its_block_whoever_still_holds_it(group: GroupTopics) -> None:
    before = clients()
    with SettlementWriter({"bootstrap.servers": group.bootstrap}, group.names) as writer:
        writer.forget(["none"])
        assert clients() - before
    assert clients() <= before
    del writer
