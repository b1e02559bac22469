"""Which settings apply to a group: the newest of those that live instances have, decided alike by every reader."""

from __future__ import annotations

import json
import random

import pytest

from reconsume.topics.agreement import (
    LARGEST_RANK,
    SettingsHeard,
    SettingsRecord,
    digest_of,
    newest_first,
    next_rank,
    render_settings,
    settings_key,
)
from reconsume.topics.policy_record import BadRecord, parse_record


def record(rank: int, **values: object) -> SettingsRecord:
    return SettingsRecord(values, rank)


A, B, C = record(1, x=1), record(2, x=2), record(2, x=3)
RECORDS = {digest_of(one.values): one for one in (A, B, C)}
DIGEST_A, DIGEST_B, DIGEST_C = RECORDS
GREATER, LESSER = sorted((DIGEST_B, DIGEST_C), reverse=True)


@pytest.mark.parametrize(
    ("named", "order"),
    [
        pytest.param({}, [], id="no instance lives"),
        pytest.param({"p": "", "q": ""}, [], id="instances that have no part in it"),
        pytest.param({"p": "unknown", "q": DIGEST_A}, [DIGEST_A], id="a digest without a record does not count"),
        pytest.param({"p": DIGEST_A, "q": DIGEST_B}, [DIGEST_B, DIGEST_A], id="the greater rank"),
        pytest.param({"p": DIGEST_B, "q": DIGEST_C}, [GREATER, LESSER], id="of equal ranks the greater digest"),
    ],
)
def test_the_greatest_rank_among_the_live_instances_comes_first(named: dict[str, str], order: list[str]) -> None:
    assert [one.digest for one in newest_first(RECORDS, named)] == order


def test_the_instances_that_have_settings_are_named() -> None:
    (newest,) = newest_first(RECORDS, {"q": DIGEST_A, "p": DIGEST_A, "r": ""})
    assert newest.instances == ("p", "q")


def test_readers_that_have_heard_the_same_decide_alike_in_whatever_order_they_heard_it() -> None:
    chance = random.Random(7)
    for _ in range(300):
        records = [record(chance.randint(1, 4), x=number) for number in range(chance.randint(1, 8))]
        parsed = [(digest_of(one.values), one) for one in records]
        named = [(f"pod-{number}", chance.choice([*dict(parsed), ""])) for number in range(chance.randint(0, 6))]
        first = newest_first(dict(parsed), dict(named))
        chance.shuffle(parsed)
        chance.shuffle(named)
        assert newest_first(dict(parsed), dict(named)) == first
        ranks = [(one.record.rank, one.digest) for one in first]
        assert ranks == sorted(ranks, reverse=True)
        # An instance that goes, and whose settings others have too, changes nothing.
        if first and len(first[0].instances) > 1:
            left = {name: digest for name, digest in named if name != first[0].instances[0]}
            assert newest_first(dict(parsed), left)[0].digest == first[0].digest


def test_settings_that_are_new_have_a_greater_rank_than_all() -> None:
    assert (next_rank({}), next_rank(RECORDS)) == (1, 3)
    assert next_rank({"hostile": record(LARGEST_RANK)}) == LARGEST_RANK


def test_what_is_rendered_is_read_back_and_its_digest_does_not_depend_on_the_order_of_keys() -> None:
    values = {"ladder": ["1s"], "max_age": None, "multiplier": 1.5}
    one = SettingsRecord(values, 4)
    digest = digest_of(dict(reversed(values.items())))
    assert parse_record(settings_key(digest), render_settings(one)) == SettingsHeard(digest, one)
    assert parse_record(settings_key(digest), None) == SettingsHeard(digest, None)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"v": 1, "values": {"x": 2}, "rank": 1}, "the key of settings is not the digest"),
        ({"v": 1, "values": {"x": 1}, "rank": 0}, "not as agreed"),
        ({"v": 1, "values": {"x": 1}, "rank": 2**63}, "not as agreed"),
        ({"v": 1, "values": [], "rank": 1}, "not as agreed"),
        ({"v": 2}, "a newer version"),
        ("x", "not as agreed"),
    ],
)
def test_a_record_that_is_not_as_agreed_is_none(value: object, says: str) -> None:
    parsed = parse_record(settings_key(digest_of({"x": 1})), json.dumps(value).encode())
    assert isinstance(parsed, BadRecord)
    assert says in parsed.text
