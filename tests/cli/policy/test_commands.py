"""`policy show`, `set` and `explain --live` on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import Result

from reconsume.sidecar.kafka.admin.cluster import Cluster
from reconsume.sidecar.settings.group_policy import agreed_values
from reconsume.sidecar.settings.policy import heartbeat_of
from reconsume.topics.agreement import SettingsRecord, digest_of, render_settings, settings_key
from reconsume.topics.policy_record import LARGEST, SubscriptionRecord, instance_key, render_record
from tests.conftest import MakeTopic
from tests.support.kafka.broker import Broker
from tests.support.kafka.topic_io import Out, create_topic, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import good

Call = Callable[..., Result]
COMPACT = {"cleanup.policy": "compact"}


@pytest.fixture
def topic(kafka: Broker, group: str) -> str:
    """The policy topic; level topics of 1s and 1m are there as well."""
    for level in ("1s", "1m"):
        create_topic(kafka.bootstrap, f"{group}-RETRY-{level}", 1)
    create_topic(kafka.bootstrap, f"{group}-RETRY-POLICY", 1, COMPACT)
    return f"{group}-RETRY-POLICY"


@pytest.fixture
def call(kafka: Broker, group: str, make_topic: MakeTopic, tmp_path: Path) -> Call:
    """`call("policy", "show")` for a fresh group with two levels."""
    file = tmp_path / "reconsume.yaml"
    tree = {
        "group": group,
        "topics": ["orders"],
        "kafka": {"bootstrap.servers": kafka.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/", "timeout": "20s"},
        "retry": {"levels": ["1s", "1m"], "ladder": ["1s", "1m"]},
    }
    file.write_text(json.dumps(tree), encoding="utf-8")
    return lambda *words, **environ: reconsume(*words, "-c", file, **environ)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def values(result: Result) -> dict[str, tuple[object, str]]:
    return {row["key"]: (row["value"], row["origin"]) for row in rows(result)}


def test_show_says_where_each_value_comes_from(call: Call, topic: str) -> None:
    assert call("policy", "set", "concurrency=9", "--yes", "--who", "ann").exit_code == 0
    shown = call("policy", "show", RECONSUME_RETRY__MAX_DEATHS="5")
    current = values(shown)
    assert shown.exit_code == 0
    assert current["concurrency"] == (9, "policy")
    assert (current["max_deaths"], current["timeout"]) == ((5, "file"), ("20s", "file"))
    assert current["max_reconsume_times"] == (16, "default")
    assert "set by ann at 20" in shown.stderr


def test_more_than_a_hundred_retries_are_a_warning_only_where_the_policy_sets_them(call: Call, topic: str) -> None:
    shown = call("policy", "set", "max_reconsume_times=200", "--dry-run")
    assert "warning: retry.max_reconsume_times = 200: each record that always fails" in shown.stderr
    assert "always fails" not in call("policy", "set", "max_reconsume_times=100", "--dry-run").stderr


def test_a_timeout_that_a_live_instance_does_not_wait_for_is_a_warning(call: Call, kafka: Broker, topic: str) -> None:
    for name, lock, drain in (("pod-1", 290_000, 290_000), ("pod-2", 30_000, 50_000)):
        beat = SubscriptionRecord({"orders": "*"}, int(time.time() * 1000), lock_timeout=lock, drain_timeout=drain)
        produce(kafka.bootstrap, topic, [Out(render_record(beat), instance_key(name))])
    silent = int(time.time() * 1000) - 200_000
    old = SubscriptionRecord({"orders": "*"}, silent, lock_timeout=1, drain_timeout=1)
    produce(kafka.bootstrap, topic, [Out(render_record(old), instance_key("pod-0"), timestamp=silent)])
    longer = call("policy", "set", "timeout=40s", "--dry-run")
    assert "at pod-2 a partition that a rebalance takes away waits at most 30s for it (lock_timeout)" in longer.stderr
    assert "drain_timeout" not in longer.stderr
    assert "a delivery may take" not in call("policy", "set", "timeout=30s", "--dry-run").stderr


def test_set_writes_what_was_there_before_and_keeps_what_it_does_not_change(
    call: Call, kafka: Broker, topic: str
) -> None:
    first = call("policy", "set", "ladder=[1m]", "timeout=60s", "--yes")
    assert (first.exit_code, rows(first)) == (
        0,
        [{"key": "ladder", "old": ["1s", "1m"], "new": ["1m"]}, {"key": "timeout", "old": "20s", "new": "1m"}],
    )
    assert call("policy", "set", "timeout=2m", "ordered_max_times=5", "--yes", "--who", "bob").exit_code == 0
    record = json.loads(dump(kafka.bootstrap, topic)[-1].value or b"")
    assert abs(record.pop("at") - time.time() * 1000) < 60_000
    assert record == {
        "v": 1,
        "policy": {"ladder": ["1m"], "timeout": "2m", "ordered_max_times": 5},
        "who": "bob",
        "was": {"timeout": "1m", "ordered_max_times": None},
    }
    assert call("policy", "set", "--unset", "timeout", "--yes").exit_code == 0
    assert values(call("policy", "show"))["timeout"][0] == "20s"


def test_a_policy_keeps_and_shows_the_reason_that_was_given(call: Call, kafka: Broker, topic: str) -> None:
    assert call("policy", "set", "timeout=2m", "--who", "bob", "--why", "the ledger is slow", "--yes").exit_code == 0
    assert json.loads(dump(kafka.bootstrap, topic)[-1].value or b"")["why"] == "the ledger is slow"
    shown = call("policy", "show").stderr
    assert ("set by bob at " in shown, ", because the ledger is slow\n" in shown) == (True, True)


def test_a_broken_record_is_passed_over_and_said(call: Call, kafka: Broker, topic: str) -> None:
    assert call("policy", "set", "max_deaths=7", "--yes").exit_code == 0
    produce(kafka.bootstrap, topic, [Out(b"broken", b"policy")])
    shown = call("policy", "show")
    assert values(shown)["max_deaths"] == (7, "policy")
    assert "warning: the policy at offset 1 is passed over: the value is not as agreed" in shown.stderr


def test_no_record_keeps_a_new_policy_from_being_written(call: Call, kafka: Broker, topic: str, tmp_path: Path) -> None:
    """Given a policy nested 700 deep, and one filled with unknown keys, then each is named and kept out."""
    form = b'{"v":1,"who":"x","at":1,"policy":{"max_deaths":7,"new":%s}}'
    produce(kafka.bootstrap, topic, [Out(form % (b"[" * 700 + b"]" * 700), b"policy")])
    shown = call("policy", "show")
    assert values(shown)["max_deaths"] == (3, "default")
    assert "the policy at offset 0 is passed over: the value is nested deeper than 5 levels" in shown.stderr
    full = form % (b'"' + b"x" * (LARGEST - len(form)) + b'"')
    produce(kafka.bootstrap, topic, [Out(full, b"policy")])
    assert values(call("policy", "show"))["max_deaths"] == (7, "policy")
    refused = call("policy", "set", "max_reconsume_times=3", "--yes")
    assert (refused.exit_code, "the policy is too large" in refused.stderr) == (1, True)
    (file := tmp_path / "policy.yaml").write_text("max_reconsume_times: 3\n")
    assert call("policy", "apply", "-f", str(file), "--yes").exit_code == 0
    found = values(call("policy", "show"))
    assert (found["max_deaths"], found["max_reconsume_times"]) == ((3, "default"), (3, "policy"))
    assert "before: " in call("policy", "show").stderr


def test_a_bad_value_is_a_bad_configuration_with_the_files_sentence(call: Call, kafka: Broker, topic: str) -> None:
    shown = call("policy", "set", "timeout=5", "concurrency=0", "--yes")
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert 'deliver.timeout = "5": must be a duration from 10ms to 1d, with a unit: 5s or 5ms, say' in shown.stderr
    assert "deliver.concurrency = 0: must be a whole number from 1 to 65536" in shown.stderr
    assert dump(kafka.bootstrap, topic) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["max_retries=3"], "max_retries: the group can set max_reconsume_times, ladder"),
        (["retry.ladder=pulsar"], "retry.ladder: write ladder"),
        (["ladder"], "ladder: must be KEY=VALUE"),
        ([], "nothing to set"),
        (["max_deaths=4", "--who", "a\nb"], "--who must be"),
        (["max_deaths=4", "--why", "a\nb"], "--why: the reason must be 1 to 1000 printable characters"),
    ],
)
def test_wrong_usage(call: Call, topic: str, words: list[str], said: str) -> None:
    shown = call("policy", "set", *words, "--yes")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert said in shown.stderr


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_levels_that_are_missing_are_named_with_the_mend_and_nothing_is_written(
    call: Call, kafka: Broker, group: str, topic: str, words: tuple[str, ...]
) -> None:
    shown = call("policy", "set", "levels=[1s, 2m, 3m]", "--yes", *words)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert (
        f"level topics are missing, or not for this user to see: {group}-RETRY-2m, {group}-RETRY-3m; create them first"
        in shown.stderr
    )
    assert "reconsume topics apply --set 'retry.ladder=" in shown.stderr
    assert "--set 'retry.levels=[1s, 2m, 3m]'" in shown.stderr
    assert dump(kafka.bootstrap, topic) == []


def test_a_ladder_that_keeps_the_order_needs_its_queues(call: Call, kafka: Broker, group: str, topic: str) -> None:
    ordered = {"RECONSUME_DELIVER__ORDER": "key", "RECONSUME_RETRY__LEVELS": "ladder"}
    words = ("policy", "set", "ordered_ladder=[1s, 1m]", "ordered_exhausted=park", "--yes")
    refused = call(*words, **ordered)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert (
        f"queue topics are missing, or not for this user to see: {group}-ORDERED-orders; create them first: "
        in refused.stderr
    )
    assert "--set 'retry.ordered_ladder=[1s, 1m]'" in refused.stderr
    create_topic(kafka.bootstrap, f"{group}-ORDERED-orders", 1)
    assert call(*words, **ordered).exit_code == 0
    shown = values(call("policy", "show", **ordered))
    assert (shown["ordered_ladder"], shown["ordered_exhausted"]) == ((["1s", "1m"], "policy"), ("park", "policy"))
    alone = call("policy", "set", "ordered_ladder=null", "--yes", **ordered)
    assert (alone.exit_code, "retry.ordered_exhausted" in alone.stderr) == (78, True), "nothing would be parked"
    planned = call("policy", "set", "ordered_exhausted=dead-letter", "--dry-run", **ordered)
    assert "what is parked becomes a dead letter, unless it is settled before" in planned.stderr
    both = call("policy", "set", "ordered_ladder=null", "ordered_exhausted=dead-letter", "--yes", **ordered)
    assert (both.exit_code, "what is parked stays so, and its key with it" in both.stderr) == (0, True)


def test_dry_run_and_a_missing_terminal_change_nothing(call: Call, kafka: Broker, topic: str) -> None:
    dry = call("policy", "set", "max_deaths=4", "--dry-run")
    assert (dry.exit_code, rows(dry)) == (0, [{"key": "max_deaths", "old": 3, "new": 4}])
    silent = call("policy", "set", "max_deaths=4")
    assert (silent.exit_code, silent.stdout) == (2, "")
    assert "--yes" in silent.stderr
    assert dump(kafka.bootstrap, topic) == []


def test_what_is_set_already_is_not_written_again(call: Call, kafka: Broker, topic: str) -> None:
    assert call("policy", "set", "max_deaths=4", "--yes").exit_code == 0
    again = call("policy", "set", "max_deaths=4", "--yes")
    assert (again.exit_code, again.stdout, again.stderr) == (0, "", "nothing would change\n")
    assert len(dump(kafka.bootstrap, topic)) == 1


def test_a_value_that_every_instance_has_today_is_still_set_for_the_group(call: Call, topic: str) -> None:
    """Else the next file that is changed would change it for one instance."""
    shown = call("policy", "set", "max_deaths=3", "--yes")
    assert (shown.exit_code, rows(shown)) == (0, [{"key": "max_deaths", "old": 3, "new": 3}])


def test_without_the_topic_show_has_the_configuration_and_set_says_the_mend(
    call: Call, kafka: Broker, group: str
) -> None:
    shown = call("policy", "show")
    assert (shown.exit_code, values(shown)["max_deaths"]) == (0, (3, "default"))
    assert f"{group}-RETRY-POLICY: missing, or not for this user to see; `reconsume topics apply -c " in shown.stderr
    refused = call("policy", "set", "max_deaths=3", "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "`reconsume topics apply -c " in refused.stderr
    assert Cluster({"bootstrap.servers": kafka.bootstrap}).find_topics([f"{group}-RETRY-POLICY"]) == {}


def test_show_warns_where_strict_would_refuse(call: Call, topic: str) -> None:
    assert call("policy", "set", "max_deaths=9", "--yes").exit_code == 0
    assert "refuses to start" in call("policy", "show", "--set", "policy_mode=strict").stderr
    assert "refuses to start" not in call("policy", "show").stderr


# --- the settings of instances ---------------------------------------------------------------------------------------


def newest_instance(kafka: Broker, topic: str, path: Path, *sets: str) -> str:
    """Have an instance with these settings in the log, and return their digest."""
    settings = good(path, *sets)
    values = agreed_values(settings)
    digest = digest_of(values)
    beat = replace(heartbeat_of(settings), at=int(time.time() * 1000), started=int(time.time() * 1000))
    settings_record = Out(render_settings(SettingsRecord(values, 7)), settings_key(digest))
    produce(kafka.bootstrap, topic, [settings_record, Out(render_record(beat), instance_key("pod-7"))])
    return digest


def test_show_and_explain_say_which_values_are_those_of_instances(
    call: Call, kafka: Broker, topic: str, tmp_path: Path
) -> None:
    """Given a live instance of newer settings than this configuration, and a policy, then each value has its origin."""
    folder = tmp_path / "pod"
    folder.mkdir()
    digest = newest_instance(kafka, topic, folder, "retry.levels=[1s, 1m]", "retry.ladder=[1m]", "retry.max_deaths=8")
    assert call("policy", "set", "max_reconsume_times=1", "--yes").exit_code == 0
    shown = call("policy", "show")
    current = values(shown)
    assert (current["max_deaths"], current["max_reconsume_times"]) == ((8, "instances"), (1, "policy"))
    assert (current["timeout"], current["rate"]) == (("20s", "file"), (None, "default"))
    assert f"instances: settings {digest} of pod-7 are the newest, and apply below the policy" in shown.stderr
    explained = call("explain", "--live")
    assert [row["waits"] for row in rows(explained)] == ["0s", "1m", "0s"]
    assert "1 value from policy" in explained.stderr
    own = call("policy", "show", "--set", "policy_mode=own")
    assert values(own)["max_deaths"] == (3, "default")


# --- a policy from a file --------------------------------------------------------------------------------------------


def written(path: Path, text: str) -> Path:
    """A file with a policy."""
    file = path / "policy.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_apply_makes_the_policy_what_the_file_says_once(call: Call, kafka: Broker, topic: str, tmp_path: Path) -> None:
    """Given a policy, then a file replaces it as a whole: other keys are unset, and the same file writes nothing."""
    assert call("policy", "set", "max_deaths=7", "timeout=60s", "--yes").exit_code == 0
    file = written(tmp_path, "timeout: 1m\nladder: [1m]\n")
    dry = call("policy", "apply", "-f", file, "--dry-run")
    assert (dry.exit_code, "the plan is based on the policy at 0" in dry.stderr) == (3, True)
    assert rows(dry) == [
        {"key": "ladder", "old": ["1s", "1m"], "new": ["1m"]},
        {"key": "max_deaths", "old": 7, "new": 3},
    ]
    assert len(dump(kafka.bootstrap, topic)) == 1
    applied = call("policy", "apply", "-f", file, "--yes", "--who", "ci")
    assert (applied.exit_code, rows(applied)) == (0, rows(dry))
    assert json.loads(dump(kafka.bootstrap, topic)[-1].value or b"")["policy"] == {"ladder": ["1m"], "timeout": "1m"}
    for words in (("--yes",), ("--dry-run",)):
        again = call("policy", "apply", "-f", written(tmp_path, "ladder: [60s]\ntimeout: 60s\n"), *words)
        assert (again.exit_code, again.stdout, again.stderr) == (0, "", "nothing would change\n")
    assert len(dump(kafka.bootstrap, topic)) == 2


def test_an_empty_mapping_withdraws_the_policy(call: Call, topic: str, tmp_path: Path) -> None:
    assert call("policy", "set", "max_deaths=7", "--yes").exit_code == 0
    gone = call("policy", "apply", "-f", written(tmp_path, "{}"), "--yes")
    assert (gone.exit_code, rows(gone)) == (0, [{"key": "max_deaths", "old": 7, "new": 3}])
    assert values(call("policy", "show"))["max_deaths"] == (3, "default")
    assert call("policy", "apply", "-f", written(tmp_path, "{}"), "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", 78, "must be a mapping of the policy's keys; {} withdraws the policy"),
        ("- ladder", 78, "must be a mapping of the policy's keys"),
        ("retry.ladder: [1s]", 78, "retry.ladder: write ladder"),
        ("ladders: [1s]", 78, "ladders: the group can set max_reconsume_times"),
        ("timeout: 5", 78, "deliver.timeout = 5: must be a duration from 10ms to 1d, with a unit: 5s or 5ms, say"),
        ("ladder: [1s", 78, "policy.yaml: "),
        ("levels: [1s, 7m]", 1, "create them first"),
    ],
)
def test_a_file_that_is_no_policy_changes_nothing(
    call: Call, kafka: Broker, topic: str, tmp_path: Path, text: str, code: int, says: str
) -> None:
    shown = call("policy", "apply", "-f", written(tmp_path, text), "--yes")
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert says in shown.stderr
    assert dump(kafka.bootstrap, topic) == []


def test_explain_is_by_the_file_and_live_by_the_group(call: Call, topic: str) -> None:
    assert call("policy", "set", "ladder=[1m]", "max_reconsume_times=1", "--yes").exit_code == 0
    assert [row["waits"] for row in rows(call("explain", "--live"))] == ["0s", "1m", "0s"]
    assert len(rows(call("explain"))) == 18
