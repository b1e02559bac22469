"""What is in force by a control log, whose value each key has, and how instances differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reconsume.sidecar.group_policy.agreement import differences_of, group_settings, named
from reconsume.sidecar.group_policy.state import ControlState
from reconsume.sidecar.settings.group_policy import AGREED, KEYS, agreed_values, overridden
from reconsume.sidecar.settings.policy import heartbeat_of
from reconsume.topics.agreement import MOST_DIGESTS, SILENT_AFTER, SettingsHeard, SettingsRecord, digest_of
from reconsume.topics.policy_record import BadRecord, Heard, InstanceHeard, PolicyHeard, PolicyRecord
from tests.support.control_log import said, state_of
from tests.support.sidecar.settings import good

START = 1_000_000


def pod(path: Path, name: str, rank: int, *sets: str) -> tuple[SettingsHeard, InstanceHeard]:
    """What an instance of these settings has written. It started `rank` ms after START."""
    settings = good(path, *sets)
    values = agreed_values(settings)
    beat = replace(heartbeat_of(settings), started=START + rank)
    return SettingsHeard(digest_of(values), SettingsRecord(values, rank)), InstanceHeard(name, beat)


def group_policy(**values: Any) -> PolicyHeard:
    return PolicyHeard(PolicyRecord(values, "ann", 1))


def log_of(*records: Heard) -> ControlState:
    return state_of(*records, at=START)


def test_what_decides_what_becomes_of_a_record_is_agreed_and_capacity_is_not() -> None:
    assert set(KEYS) - set(AGREED) == {"timeout", "concurrency", "rate"}


def test_the_layers_are_file_newest_instance_and_policy_and_each_value_says_which(tmp_path: Path) -> None:
    """Given three configurations and a policy, then all agreed keys are those of the newest instance, with its
    defaults, and the policy applies over them."""
    file = good(tmp_path, "retry.max_deaths=9", "deliver.timeout=7s", "retry.max_age=1h")
    newest = pod(tmp_path, "pod-1", 2, "retry.max_reconsume_times=20", "deliver.timeout=9s")
    oldest = pod(tmp_path, "pod-0", 1, "retry.max_reconsume_times=3", "retry.jitter=5%")
    state = log_of(*newest, *oldest, group_policy(jitter="2%"))
    chosen = group_settings(file, state, START)
    retry = chosen.settings.retry
    assert (retry.max_reconsume_times, retry.max_deaths, retry.max_age, retry.jitter) == (20, 3, None, 2)
    assert chosen.settings.deliver.timeout == 7_000, "it is each instance's own"
    origins = chosen.origins(file)
    assert [origins[key] for key in ("jitter", "max_deaths", "timeout", "rate")] == [
        "policy", "instances", "file", "default",
    ]  # fmt: skip
    assert chosen.agreed is not None
    assert (chosen.agreed.digest, chosen.agreed.instances) == (newest[0].digest, ("pod-1",))
    later = group_settings(file, state, START + SILENT_AFTER)
    assert (later.settings.retry.max_deaths, later.agreed) == (9, None), "all are silent"


def test_the_settings_of_this_very_configuration_come_from_the_file(tmp_path: Path) -> None:
    chosen = group_settings(good(tmp_path), log_of(*pod(tmp_path, "pod-0", 1)), START)
    assert chosen.agreed is not None
    assert set(chosen.origins(good(tmp_path)).values()) <= {"file", "default"}


def test_without_a_log_or_with_a_policy_of_its_own_the_file_counts(tmp_path: Path) -> None:
    newest = pod(tmp_path, "pod-1", 2, "retry.max_deaths=20")
    assert group_settings(good(tmp_path), None, START).settings == good(tmp_path)
    for mode in ("policy_mode=own", "policy_mode=strict"):
        file = good(tmp_path, mode)
        assert group_settings(file, log_of(*newest), START).settings == file
    own = pod(tmp_path, "pod-2", 3, "retry.max_deaths=30", "policy_mode=own")
    chosen = group_settings(good(tmp_path), log_of(*newest, *own), START)
    assert chosen.settings.retry.max_deaths == 20, "such an instance is not followed"


def test_settings_that_no_instance_reads_are_skipped_and_a_bad_policy_is_not_in_force(tmp_path: Path) -> None:
    file, values = good(tmp_path), {**agreed_values(good(tmp_path)), "max_deaths": -1}
    bad = SettingsHeard(digest_of(values), SettingsRecord(values, 9))
    beat = InstanceHeard("bad", replace(heartbeat_of(file), settings=bad.digest))
    next_best = pod(tmp_path, "pod-1", 2, "retry.max_deaths=20")
    chosen = group_settings(file, log_of(bad, beat, *next_best, group_policy(ladder="steep")), START)
    assert chosen.settings.retry.max_deaths == 20
    assert list(chosen.skipped) == [bad.digest]
    assert chosen.refused[0].startswith("retry.ladder = steep")
    assert chosen.record is None


def test_settings_of_a_version_with_other_keys_apply_with_our_defaults_and_nothing_else(tmp_path: Path) -> None:
    values = {"max_deaths": 7, "timeout": "1s", "of_a_newer_version": [1]}
    record = SettingsHeard(digest_of(values), SettingsRecord(values, 1))
    beat = InstanceHeard("pod-1", replace(heartbeat_of(good(tmp_path)), settings=record.digest))
    chosen = group_settings(good(tmp_path, "retry.max_age=1h"), log_of(record, beat), START)
    assert (chosen.settings.retry.max_deaths, chosen.settings.retry.max_age) == (7, None)
    assert chosen.settings.deliver.timeout == 30_000


def test_a_record_that_cannot_be_read_takes_settings_away_and_too_many_drop_the_oldest_without_an_instance(
    tmp_path: Path,
) -> None:
    live = pod(tmp_path, "pod-0", 1)
    others = [SettingsHeard(digest_of({"x": n}), SettingsRecord({"x": n}, n + 2)) for n in range(MOST_DIGESTS + 5)]
    state = log_of(*live, *others)
    assert len(state.settings.records) == MOST_DIGESTS
    assert live[0].digest in state.settings.records
    assert others[0].digest not in state.settings.records
    for record in said(BadRecord("rubbish"), begin=state.next_offset):
        state.apply(record._replace(key=b"settings/" + live[0].digest.encode()), START)
    assert live[0].digest not in state.settings.records


def test_all_that_differs_is_named_with_values_instances_whose_apply_and_since_when(tmp_path: Path) -> None:
    records = [
        *pod(tmp_path, "pod-0", 1, "retry.max_reconsume_times=3", "deliver.order=key", "topics=[orders]"),
        *pod(tmp_path, "pod-1", 7, "retry.max_reconsume_times=20", "topics=[{name: orders, tags: A || B}]"),
        *pod(tmp_path, "pod-2", 9, "retry.max_reconsume_times=20", "topics=[{name: orders, tags: B||A}]"),
    ]
    state = log_of(*records, group_policy(max_deaths=1))
    in_force = group_settings(good(tmp_path), state, START)
    chosen = {one.key: one for one in differences_of(state.beats.running(START), state.settings.records, in_force)}
    assert set(chosen) == {"max_reconsume_times", "tags", "order"}
    assert chosen["max_reconsume_times"].values == ((3, ("pod-0",)), (20, ("pod-1", "pod-2")))
    assert chosen["max_reconsume_times"].since == START + 7
    assert "20 applies to all (instances)" in chosen["max_reconsume_times"].sentence
    assert chosen["tags"].values == (("orders", ("pod-0",)), ("orders (A||B)", ("pod-1", "pod-2")))
    assert chosen["order"].sentence == "order is key at pod-0 and none at pod-1, pod-2: each goes by its own"
    over = log_of(*records, group_policy(max_reconsume_times=5))
    in_force = group_settings(good(tmp_path), over, START)
    by_policy = differences_of(over.beats.running(START), over.settings.records, in_force)[0]
    assert (by_policy.origin, by_policy.applied) == ("policy", 5)


def test_the_values_of_settings_are_compared_as_parsed(tmp_path: Path) -> None:
    one, other = pod(tmp_path, "a", 1, "retry.max_age=60s"), pod(tmp_path, "b", 2, "retry.max_age=1m")
    assert one[0].digest == other[0].digest
    assert overridden(good(tmp_path), agreed_values(good(tmp_path, "retry.max_age=60s"))).retry.max_age == 60_000


@pytest.mark.parametrize(("count", "text"), [(1, "p0"), (3, "p0, p1, p2"), (5, "p0, p1, p2 and 2 more")])
def test_a_sentence_names_few_instances(count: int, text: str) -> None:
    assert named(f"p{number}" for number in range(count)) == text
