"""Of many items Kafka refuses some: these fail alone, all others are written, and nothing is passed over meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from reconsume.sidecar.core.commit_batch import Refusal, SettledRecord
from reconsume.sidecar.kafka.committer.write_apart import Refusals, write_apart
from reconsume.topics.transitions import Commit
from tests.sim.samples import record

TOPIC = "ready"


@dataclass(eq=False)
class Item:
    """One item: its place in the order, its bytes, and what Kafka has against it."""

    number: int
    size: int
    about: str = ""
    """`record`: refused wherever it is; `place`: its partition takes nothing; `unnamed`: Kafka does not say."""


@dataclass
class Kafka:
    """What is refused, as Kafka and its client do it: some are named, beside them others that are not to blame."""

    chance: random.Random
    limit: int
    batch: int
    """Bytes of records that one request carries. A request of several that exceeds the limit is refused as a whole."""
    written: list[int] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    tries: int = 0

    def attempt(self, take: list[Item], left: list[Item]) -> Refusals | None:
        self.tries += 1
        found = self._refused(take)
        if found is None:
            self._passes_over_nothing(take, left)
            self.written += [item.number for item in take]
            self.left.update(item.number for item in left)
            self.left.difference_update(self.written)
        return found

    def _refused(self, take: list[Item]) -> Refusals | None:
        places = {n: _refusal("partition") for n, item in enumerate(take) if item.about == "partition"}
        requests = self._requests(take)
        large = [request for request in requests if sum(take[n].size for n in request) > self.limit]
        bad = [request for request in requests if any(take[n].about == "record" for n in request)]
        found = places | {n: _refusal("record") for request in bad for n in request}
        for request in self.chance.sample(large, min(len(large), 2)):  # the client then sends no others
            found |= {n: _refusal("record", too_large=True) for n in request}
        if not found and any(item.about == "unnamed" for item in take):
            return {} if len(take) > 1 else {0: _refusal("record")}
        return found or None

    def _requests(self, take: list[Item]) -> list[list[int]]:
        requests = list[list[int]]()
        size = self.batch
        for number, item in enumerate(take):
            if size + item.size > self.batch:
                requests.append([])
                size = 0
            requests[-1].append(number)
            size += item.size
        return requests

    def _passes_over_nothing(self, take: list[Item], left: list[Item]) -> None:
        """Progress says how far all is done: what lies below must be written or left by this transaction at the latest.

        A redrive that is killed behind it would never bring the others back.
        """
        known = {*self.written, *self.left, *(item.number for item in (*take, *left))}
        reached = max(item.number for item in (*take, *left))
        assert set(range(reached + 1)) <= known


def _refusal(about: str, *, too_large: bool = False) -> Refusal:
    entry = SettledRecord(record(0), Commit(None), ())
    return Refusal(entry, about, "no", f"{TOPIC}[0]", too_large)  # type: ignore[arg-type]


def test_what_kafka_refuses_fails_alone_and_all_others_are_written() -> None:
    for seed in range(200):
        write_with_refusals(random.Random(seed))


def write_with_refusals(chance: random.Random) -> None:
    """Write three batches with some records that Kafka refuses, and check that no other one is missing."""
    kafka = Kafka(chance, limit=chance.choice((100, 1_000, 5_000)), batch=chance.choice((200, 2_000)))
    number = 0
    for _ in range(3):
        kinds = chance.choices(("", "record", "partition", "unnamed"), (90, 2, 5, 1), k=60)
        sizes = chance.choices((50, 300, 3_000, 9_000), (80, 10, 5, 2), k=60)
        items = [Item(number + n, size, about) for n, (size, about) in enumerate(zip(sizes, kinds, strict=True))]
        number += len(items)
        refused = list[Item]()
        write_apart(items, kafka.attempt, lambda item, why, refused=refused: refused.append(item))  # type: ignore[misc]
        bad = {item.number for item in items if item.about or item.size > kafka.limit}
        assert {item.number for item in refused} == bad
        assert len(refused) == len(bad), "each is refused once"
    assert sorted([*kafka.written, *kafka.left]) == list(range(number)), "each is written or left, once"


def test_records_that_are_too_large_stop_the_others_a_few_times_each() -> None:
    """Each transaction that is refused costs a new producer."""
    kafka = Kafka(random.Random(1), limit=2_000, batch=2_000)
    large = [n for n in range(500) if n % 50 == 7]
    refused = list[Item]()
    items = [Item(n, 5_000 if n in large else 10) for n in range(500)]
    write_apart(items, kafka.attempt, lambda item, why: refused.append(item))
    assert sorted(item.number for item in refused) == large
    assert len(kafka.written) == 490
    assert kafka.tries <= 1 + 2 * len(large)


def test_small_records_that_are_refused_for_their_company_are_all_written() -> None:
    kafka = Kafka(random.Random(1), limit=1_000, batch=100_000)
    write_apart([Item(n, 400) for n in range(50)], kafka.attempt, lambda item, why: pytest.fail("it fits"))
    assert sorted(kafka.written) == list(range(50))
    assert not kafka.left
