"""What is kept of a policy topic that somebody has filled: the newest, within bounds, and what holds."""

from __future__ import annotations

from reconsume.sidecar.group_policy.store import MOST, MOST_BYTES, Entry, in_force, newest
from reconsume.sidecar.group_policy.topic import MOST as MOST_TOLD
from reconsume.sidecar.group_policy.topic import Latest, PolicyTopicRecord
from reconsume.topics.policy_record import BadRecord, InstanceHeard, PolicyHeard, PolicyRecord

GOOD = PolicyRecord({"max_deaths": 7}, "ann", 5)
LARGE = 64 * 1024


def test_of_policies_the_newest_are_kept_and_the_one_that_is_in_force() -> None:
    """Given a good policy below a flood of broken ones, large or many, then it is still the one in force."""
    for count, size in ((5_000, 0), (100, LARGE)):
        flood = [(Entry(number + 1, None, "broken"), size) for number in range(count)]
        kept = newest([(Entry(0, GOOD), 100), *flood])
        assert in_force(kept) == GOOD
        assert [entry.offset for entry in kept[-2:]] == [count - 1, count]
        assert len(kept) <= (MOST if size == 0 else MOST_BYTES // size) + 1


def test_a_few_are_all_kept_in_order() -> None:
    entries = [Entry(0, GOOD), Entry(1, None), Entry(2, None, "broken")]
    assert newest((entry, LARGE) for entry in entries) == entries


def test_of_instances_the_last_word_of_each_is_kept_within_bounds_and_the_policy_always() -> None:
    latest = Latest()
    latest.add(PolicyTopicRecord(PolicyHeard(GOOD), 0), LARGE)
    latest.add(PolicyTopicRecord(BadRecord("x"), 1), LARGE)
    for number in range(10_000):
        latest.add(PolicyTopicRecord(InstanceHeard(f"x{number}", None), number), LARGE)
    last = PolicyTopicRecord(InstanceHeard("x9999", None), 10_001)
    latest.add(last, LARGE)
    records = latest.records()
    assert len(records) == MOST_TOLD // LARGE
    assert records[0].heard == PolicyHeard(GOOD)
    assert records[-1] == last
    names = [record.heard.instance for record in records if isinstance(record.heard, InstanceHeard)]
    assert len(set(names)) == len(names) == len(records) - 1
