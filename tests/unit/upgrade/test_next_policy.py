"""Policies and heartbeats that the next version may write: never destroyed, never in the way, always told."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from reconsume.topics.policy_record import InstanceHeard, NewerRecord, PolicyHeard, parse_record
from tests.support.sidecar.policy_desk import SETS, Seen, policy, run
from tests.support.sidecar.settings import good

POLICY = {"v": 1, "policy": {"max_reconsume_times": 3}, "who": "ann", "at": 5, "was": {}}
TOLD: dict[str, Any] = {"v": 1, "subscription": {"orders": "*"}, "at": 1}


def heard(value: object, key: bytes = b"policy") -> object:
    return parse_record(key, json.dumps(value).encode())


def test_unknown_fields_and_keys_are_kept_or_ignored() -> None:
    found = heard({**POLICY, "policy": {"max_reconsume_times": 3, "jitter": {"of": "2s"}}, "expires": [1]})
    assert isinstance(found, PolicyHeard)
    assert found.record is not None
    assert found.record.policy == {"max_reconsume_times": 3, "jitter": {"of": "2s"}}
    found = heard({**TOLD, "pace": {"state": "resting", "since": 1, "why": {}}, "zone": "a"}, b"instance/pod-0")
    assert isinstance(found, InstanceHeard)


@pytest.mark.parametrize("value", [{**POLICY, "v": 2}, {"v": 3}, {"v": 2, "policy": [], "who": 5}])
def test_a_policy_of_a_higher_version_is_told_from_rubbish(value: object) -> None:
    assert heard(value) == NewerRecord(value["v"])  # type: ignore[index]


def test_a_heartbeat_of_a_higher_version_is_told_from_rubbish() -> None:
    assert heard({"v": 2, "wants": []}, b"instance/pod-0") == NewerRecord(2, "pod-0")


@pytest.mark.parametrize("v", [0, -1, 1.5, "2", None, True, 2**70])
def test_no_version_is_no_newer_one(v: object) -> None:
    assert not isinstance(heard({**POLICY, "v": v, "at": -1}), NewerRecord)


def test_a_policy_of_a_higher_version_leaves_the_running_one_in_force_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin(policy(max_reconsume_times=3))
        for _ in range(3):
            await seen.tell(NewerRecord(2))
        assert seen.desk.settings.retry.max_reconsume_times == 3
        assert "v 2" in seen.desk.refused[0]
        assert seen.desk.status()["policy"]["refused"] == list(seen.desk.refused)  # type: ignore[index]
        assert not seen.desk.hurried(), "only another record changes it, and records are heard of at once"
        assert seen.desk.bad_records == 0
        await seen.tell(policy(max_reconsume_times=5))
        assert (seen.desk.settings.retry.max_reconsume_times, seen.desk.refused) == (5, ())

    with caplog.at_level(logging.ERROR):
        run(good(tmp_path, *SETS), work)
    (line,) = caplog.records
    assert line.__dict__["event"] == "policy-refused"


def test_an_instance_that_starts_under_a_policy_of_a_higher_version_runs_by_its_configuration(tmp_path: Path) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin(NewerRecord(2))
        await seen.desk.start.wait_known()
        assert seen.desk.settings.retry.max_reconsume_times == 16
        assert "v 2" in seen.desk.refused[0]

    run(good(tmp_path, *SETS), work)
    run(good(tmp_path, *SETS, "policy_mode=strict"), work)


def test_the_last_policy_that_can_be_read_holds_also_where_a_newer_one_follows_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """So an instance that starts does as those that were there before, while the topic still has it."""

    async def work(seen: Seen) -> None:
        await seen.begin(policy(max_reconsume_times=3), NewerRecord(2))
        assert seen.desk.settings.retry.max_reconsume_times == 3
        assert "v 2" in seen.desk.refused[0]
        await seen.tell(policy(max_reconsume_times=4), NewerRecord(2))
        assert seen.desk.settings.retry.max_reconsume_times == 4
        assert "v 2" in seen.desk.refused[0]

    with caplog.at_level(logging.ERROR):
        run(good(tmp_path, *SETS), work)
    assert len(caplog.records) == 1


def test_heartbeats_of_a_higher_version_are_told_once_and_are_no_bad_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(seen: Seen) -> None:
        await seen.begin()
        for number in range(9):
            await seen.tell(NewerRecord(2, f"pod-{number % 3}"))
        assert seen.desk.bad_records == 0
        assert not seen.desk.instances_differ()

    with caplog.at_level(logging.INFO):
        run(good(tmp_path, *SETS), work)
    assert [line.__dict__["event"] for line in caplog.records] == ["policy-newer-instances"]
