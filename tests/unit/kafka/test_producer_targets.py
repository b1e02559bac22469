"""What a transaction would fail with is known before it begins, by one and the same list of the cluster's topics."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, cast

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.kafka.clients import CredentialRegistry
from reconsume.sidecar.kafka.committer.replaceable_producer import ReplaceableProducer
from reconsume.sidecar.kafka.committer.target_topics import TRY_TOPIC_EVERY, RefusingTopics, State, Targets
from reconsume.topics.transition_records import Copy
from reconsume.topics.transitions import Commit
from tests.sim.samples import record

GOOD = [State(0, 1), State(0, 1)]


class Listing:
    """In the place of a producer: it lists these topics."""

    def __init__(self, **topics: list[State]) -> None:
        self.topics = topics

    def look_up_topics(self, names: Iterable[str], whole: float = 0.0) -> Targets:
        found = {name: self.topics[name] for name in names if name in self.topics}
        return Targets(found, frozenset(names) - found.keys())


class Silent:
    """In the place of a producer, to which Kafka tells nothing of topics yet."""

    def look_up_topics(self, names: Iterable[str], whole: float = 0.0) -> Targets:
        return Targets({}, frozenset())


def test_a_topic_that_is_deleted_while_a_partition_of_another_one_refuses_records_is_missing_at_once() -> None:
    """Found by a soak: the copy's topic was looked up in a list that no longer had it, and the thread ended."""
    config = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t"}
    supply = ReplaceableProducer(config, cast("Any", threading.Event()), CredentialRegistry().register("main"))
    listing = Listing(level=GOOD, other=GOOD)
    supply.producer = cast("Any", listing)
    supply.targets.refresh_topics({"level", "other"}, at_once=True)
    supply.targets.refusing.refuse("other[1]")
    del listing.topics["level"]
    supply.targets._looked_at = -1e9  # more than a second ago
    entry = SettledRecord(record(0), Commit(None), (Copy("level", None, b"", [], 1),))
    [refusal] = supply.targets.missing_targets([entry])
    assert (refusal.about, refusal.where) == ("topic", "level")


def test_notes_are_written_at_once_although_kafka_was_asked_for_another_topic_a_moment_ago() -> None:
    """Found by a test on a broker: the first note was refused for 5 s, with an error that named a missing partition."""
    config = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t"}
    supply = ReplaceableProducer(config, cast("Any", threading.Event()), CredentialRegistry().register("main"))
    supply.producer = cast("Any", Listing(level=GOOD, policy=GOOD, old=[State(0, 1)]))
    supply.targets.refresh_topics({"level"})
    assert supply.targets.fault_of_notes([Copy("policy", None, b"", [], 1)]) == ""
    assert "topic old has no partition 1" in supply.targets.fault_of_notes([Copy("old", None, b"", [], 1)])


def test_notes_wait_without_a_wrong_reason_while_kafka_does_not_tell_of_their_topic() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t"}
    supply = ReplaceableProducer(config, cast("Any", threading.Event()), CredentialRegistry().register("main"))
    supply.producer = cast("Any", Silent())
    why = supply.targets.fault_of_notes([Copy("policy", None, b"", [], 1)])
    assert why == "Kafka does not tell of topic policy yet"


def test_a_topic_that_exists_and_refuses_records_is_in_no_transaction_for_a_moment() -> None:
    """Kafka adds all partitions to a transaction or none: one denied topic would fail all that is written with it."""
    clock = [100.0]
    config = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t"}
    supply = ReplaceableProducer(config, cast("Any", threading.Event()), CredentialRegistry().register("main"))
    supply.producer = cast("Any", Listing(denied=GOOD, other=GOOD))
    good = SettledRecord(record(0), Commit(None), (Copy("other", None, b"", []),))
    bad = SettledRecord(record(1), Commit(None), (Copy("other", None, b"", []), Copy("denied", None, b"", [])))
    supply.targets.denied = RefusingTopics(lambda: clock[0])
    supply.targets.refused([Refusal(bad, "topic", "denied: Topic authorization failed", "denied")])
    [refusal] = supply.targets.missing_targets([good, bad])
    assert (refusal.entry, refusal.about, refusal.where) == (bad, "topic", "denied")
    assert refusal.reason == "denied: Topic authorization failed"
    clock[0] += TRY_TOPIC_EVERY
    assert supply.targets.missing_targets([good, bad]) == (), "it is tried again: the right may have been given"
