"""`find`, `retries list --key`, `retries show --value` on a real broker: what is not done is found wherever it is."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from typer.testing import Result

from reconsume.sidecar.cli.terminal.output import clock
from reconsume.topics.hold_record import HoldRecord, hold_key, render_hold
from reconsume.topics.in_place_told import InPlaceTold
from reconsume.topics.names import Kind
from reconsume.topics.policy_record import SubscriptionRecord, instance_key, render_record
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import RetryState
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.queue_copies import AT, queue_copy
from tests.support.kafka.raw_producer import produce_raw
from tests.support.kafka.topic_io import SECONDS, Out, produce
from tests.support.kafka.view_topics import event, tell
from tests.support.sidecar.cli import for_group, reconsume
from tests.support.sidecar.redrive import dead_letter
from tests.support.view_rows import wall

KEY = b"customer-7"


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    """A group whose topics are empty."""
    return create_group(fresh_group(kafka.bootstrap), also=(Kind.POLICY,))


def copy(group: GroupTopics, retry_topic: str, origin: int, value: bytes, *, due: int = 0, at: int = 0) -> Out:
    """A copy of the record at an offset of partition 0, as a sidecar writes it to a level or to the ready topic."""
    state = RetryState(
        f"{group.main}:0:{origin}", group.main, 2, due_at=due or wall() + 60_000, timestamp=5, first_failed_at=6,
        reason="http-500: no stock",
    )  # fmt: skip
    return Out(value, KEY, tuple(render_retry_headers(state, group.group, retry_topic)), 0, at)


def done_to(group: GroupTopics, topic: str, offset: int, consumer_group: str) -> None:
    """Let a consumer group have done what is below an offset of partition 0."""
    consumer = Consumer({"bootstrap.servers": group.bootstrap, "group.id": consumer_group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def rows(result: Result, code: int = 0) -> list[dict[str, Any]]:
    assert result.exit_code == code, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_record_is_found_wherever_it_waits_and_each_match_names_the_command_that_acts_on_it(
    group: GroupTopics, tmp_path: Path
) -> None:
    level = next(iter(group.levels))
    now = wall()
    produce(group.bootstrap, group.main, [Out(b"done", KEY, (), 0, now - 9_000), Out(b"open", KEY, (), 0, now - 8_000)])
    done_to(group, group.main, 1, group.group)
    produce(group.bootstrap, level, [copy(group, level, 40, b"left the level"), copy(group, level, 41, b"waits")])
    done_to(group, level, 1, group.names.retry_group)
    produce(group.bootstrap, group.names.ready, [copy(group, group.names.ready, 42, b"due", due=now)])
    letter = [
        dead_letter(group, 43, b"dead", key=KEY, at=now),
        dead_letter(group, 44, b"often", key=KEY, redrives=3, at=now),
    ]
    produce(group.bootstrap, group.dlq, letter)

    found = {row["id"]: row for row in rows(for_group(tmp_path, group, "find", "--key", "customer-7"))}

    main = group.main
    assert {name.rsplit(":", 1)[1]: row["where"] for name, row in found.items()} == {
        "1": "undelivered", "41": "waiting", "42": "ready", "43": "dead letter", "44": "dead letter",
    }  # fmt: skip
    config = f"-c {tmp_path}/reconsume.yaml"
    assert {name.rsplit(":", 1)[1]: row["command"] for name, row in found.items()} == {
        "1": f"reconsume retries show {main}:0:1 --value {config}",
        "41": f"reconsume retries show {main}:0:41 --value {config}",
        "42": f"reconsume retries show {main}:0:42 --value {config}",
        "43": f"reconsume dlq redrive --id {main}:0:43 {config}",
        "44": f"reconsume dlq redrive --id {main}:0:44 --max-redrives 4 {config}",
    }
    table = for_group(tmp_path, group, "find", "--key", "customer-7", "-o", "table").stdout.splitlines()
    assert table[-len(found) :] == [row["command"] for row in found.values()], "whole lines, to copy into a shell"
    assert not any("reconsume" in line or "command" in line for line in table[: -len(found)])
    waiting = found[f"{main}:0:41"]
    assert (waiting["reason"], waiting["times"], waiting["topic"]) == ("http-500", 2, main)
    assert (waiting["position"], waiting["value"]) == (f"{level}:0:1", "waits")
    assert waiting["due"] > waiting["at"]


def test_what_is_parked_or_behind_another_of_its_key_is_found_in_its_queue(kafka: Broker, tmp_path: Path) -> None:
    fresh = fresh_group(kafka.bootstrap)
    group = create_group(GroupTopics(fresh.bootstrap, fresh.group, fresh.mains, queued=True))
    queue, key = group.queues[0], b"customer-8"
    copies = [queue_copy(queue, key, 3, 2, topic=group.main, parked=True), queue_copy(queue, key, 4, topic=group.main)]
    produce(group.bootstrap, queue, copies)
    ordered = {"deliver": {"url": "http://127.0.0.1:1/", "order": "key"}, "retry": {"ordered_ladder": ["1s", "2s"]}}

    waiting = rows(for_group(tmp_path, group, "find", "--key", "customer-8", **ordered))
    parked, behind = sorted(waiting, key=lambda row: row["id"])

    assert (parked["where"], behind["where"]) == ("parked", "behind")
    assert f"settle {group.main}:0:3 --retry-now" in parked["command"]


def test_a_record_in_a_queue_that_is_retried_in_place_says_both(kafka: Broker, tmp_path: Path) -> None:
    """Given a queue whose ladder the policy has ended, then its head no longer only waits for its next retry."""
    fresh, now = fresh_group(kafka.bootstrap), wall()
    group = create_group(
        GroupTopics(fresh.bootstrap, fresh.group, fresh.mains, queued=True), also=(Kind.POLICY, Kind.VIEW)
    )
    queue, ident = group.queues[0], f"{group.main}:0:3"
    head = InPlaceTold(ident, 12, now + 800, now - 90_000, "http-503")
    stuck = SubscriptionRecord({group.main: "*"}, now, retried_in_place=1, in_place=(head,))
    produce(group.bootstrap, group.names.policy, [Out(render_record(stuck), instance_key("pod-0"), partition=0)])
    produce(group.bootstrap, queue, [queue_copy(queue, b"ada", 3, 2, topic=group.main, due=AT)])
    tell(group.bootstrap, [event(group.group, 3, id=ident, topic=group.main, level=None, due=AT + 3)])
    ordered = {
        "deliver": {"url": "http://127.0.0.1:1/", "order": "key"}, "retry": {"ordered_ladder": ["1s", "2s"]},
        "view": {"source": "events"},
    }  # fmt: skip

    [found] = rows(for_group(tmp_path, group, "find", "--key", "ada", **ordered))
    listed = for_group(tmp_path, group, "retries", "list", "-o", "table", **ordered)
    [shown] = rows(for_group(tmp_path, group, "retries", "show", ident, **ordered))

    assert (found["where"], found["times"], found["reason"]) == ("waiting", 12, "http-503")
    for row in (found, shown):
        assert row["why"].startswith("in a queue and retried in place: 12 attempts failed, the last with http-503")
    assert "in place" in " ".join(listed.stdout.split())
    assert "1 record is retried in place" in listed.stderr
    assert "`reconsume retries list --blocked" in listed.stderr


def test_a_held_record_says_which_hold_keeps_it_back_and_until_when(group: GroupTopics, tmp_path: Path) -> None:
    level, now = next(iter(group.levels)), wall()
    produce(group.bootstrap, group.main, [Out(b"held", KEY, (), 0), Out(b"free", b"other", (), 0)])
    produce(group.bootstrap, level, [copy(group, level, 41, b"held later")])
    produce(group.bootstrap, group.names.ready, [copy(group, group.names.ready, 42, b"ready", due=now)])
    produce(group.bootstrap, group.dlq, [dead_letter(group, 43, b"dead", key=KEY, at=now)])
    until = now // 1_000 * 1_000 + 3_600_000
    main, ready, ended = (
        HoldRecord(now, until, "x", "ann", topic=group.main, level="main", key=KEY),
        HoldRecord(now, until, "x", "ann", topic=group.main, key=KEY),
        HoldRecord(now, until, "x", "ann", all=True, released_by="bob"),
    )

    def why(*holds: tuple[str, HoldRecord]) -> dict[str, str]:
        told = [Out(render_hold(record), hold_key(ident)) for ident, record in holds]
        produce(group.bootstrap, group.names.policy, told)
        found = rows(for_group(tmp_path, group, "find", "--topic", group.main, "e"))
        return {row["value"]: row["why"] for row in found}

    open_, end = "not done yet: in flight, retried in place, or not read yet", clock(until)
    assert why(("over", ended)) == {
        "held": open_, "free": open_, "held later": "waits for its next retry", "ready": "due, and delivered next",
        "dead": "a redrive brings it back",
    }  # fmt: skip
    assert why(("one", main)) == {
        "held": f"held by one, until {end}", "free": open_, "held later": "waits for its next retry",
        "ready": "due, and delivered next", "dead": "a redrive brings it back",
    }  # fmt: skip
    assert why(("two", ready)) == {
        "held": f"held by one, until {end}", "free": open_,
        "held later": f"held by two, until {end}; waits for its next retry", "ready": f"held by two, until {end}",
        "dead": "a redrive brings it back",
    }  # fmt: skip


@pytest.mark.parametrize("order", ["none", "key", "partition"])
def test_the_command_that_find_names_shows_a_record_that_is_retried_in_place(
    kafka: Broker, tmp_path: Path, order: str
) -> None:
    group = create_group(fresh_group(kafka.bootstrap), also=(Kind.POLICY, Kind.VIEW))
    produce(group.bootstrap, group.main, [Out(b"done", KEY, (), 0), Out(b'{"tries": "in place"}', KEY, (), 0)])
    done_to(group, group.main, 1, group.group)
    deliver = {"deliver": {"url": "http://127.0.0.1:1/", "order": order}, "view": {"source": "events"}}
    ident = f"{group.main}:0:1"

    [found] = rows(for_group(tmp_path, group, "find", "--key", "customer-7", **deliver))
    [shown] = rows(reconsume(*shlex.split(found["command"])[1:], "-o", "jsonl"))
    [bare] = rows(for_group(tmp_path, group, "retries", "show", ident, **deliver))

    assert shown["copy"]["value"]["shown"] == '{\n  "tries": "in place"\n}'
    for row in (shown, bare):
        assert (row["id"], row["where"], row["position"]) == (ident, "undelivered", ident)
        assert "not done yet: in flight, retried in place" in row["why"]
    assert "copy" not in bare
    for row in (found, bare):
        assert ("the log of the instance that owns" in row["why"]) == (order != "none")
    assert found["times"] is None, "tries in place are not counted where find reads"
    done = for_group(tmp_path, group, "retries", "show", f"{group.main}:0:0", **deliver)
    assert ([row["where"] for row in rows(done)], done.exit_code) == (["done"], 0)
    never = "is done, and never failed" if order == "none" else "is done, and no failure of it was recorded"
    assert never in done.stderr
    beyond = for_group(tmp_path, group, "retries", "show", f"{group.main}:0:7", **deliver)
    assert (beyond.exit_code, "there is no record" in beyond.stderr, "--key" in beyond.stderr) == (1, True, False)


def test_a_topic_alone_lists_what_is_not_done_of_it_within_the_limit(group: GroupTopics, tmp_path: Path) -> None:
    produce(group.bootstrap, group.main, [Out(b"%d" % number, b"k", (), 0) for number in range(4)])
    done_to(group, group.main, 1, group.group)

    every = rows(for_group(tmp_path, group, "find", "--topic", group.main))
    newest = rows(for_group(tmp_path, group, "find", "--topic", group.main, "--limit", "2"), 3)

    assert sorted(row["value"] for row in every) == ["1", "2", "3"]
    assert sorted(row["value"] for row in newest) == ["2", "3"]


@pytest.mark.parametrize("order", ["key", "partition"])
def test_without_queues_the_list_of_blocked_keys_leads_to_find(group: GroupTopics, tmp_path: Path, order: str) -> None:
    deliver = {"deliver": {"url": "http://127.0.0.1:1/", "order": order}}
    refused = for_group(tmp_path, group, "retries", "list", "--blocked", **deliver)
    said = " ".join(refused.stderr.replace("│", " ").split())
    assert (refused.exit_code != 0, "`reconsume find" in said, "topics apply" in said) == (True, True, False), said


def test_a_text_is_searched_in_key_value_and_headers_byte_by_byte_and_our_own_headers_are_not(
    group: GroupTopics, tmp_path: Path
) -> None:
    level = next(iter(group.levels))
    records = [
        Out("straße".encode(), b"k"),
        Out(b"v", "straße".encode()),
        Out(b"v", b"k", (("street", "straße".encode()),)),
        Out(b"STRASSE", b"k"),
    ]
    produce(group.bootstrap, group.main, [out._replace(partition=0) for out in records])
    produce(group.bootstrap, level, [copy(group, level, 41, b"v")])

    def offsets(*words: str) -> list[str]:
        return sorted(row["id"].rsplit(":", 1)[1] for row in rows(for_group(tmp_path, group, "find", *words)))

    assert offsets("straße") == ["0", "1", "2"]
    assert offsets("straße", "--in", "value") == ["0"]
    assert offsets("straße", "--in", "key", "--in", "headers") == ["1", "2"]
    assert offsets("street") == ["2"]
    assert offsets("no stock") == []
    assert offsets("--key", "straß") == []
    assert offsets("straße", "--key", "k") == ["0", "2"]
    nothing = for_group(tmp_path, group, "find", "no-such-customer")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr.startswith("nothing found; 5 records read")


def test_an_id_reads_only_its_own_record_of_the_main_topics(group: GroupTopics, tmp_path: Path) -> None:
    produce(group.bootstrap, group.main, [Out(b"v%d" % number, None, (), 0) for number in range(500)])
    shown = for_group(tmp_path, group, "find", "--id", f"{group.main}:0:321")
    assert [row["value"] for row in rows(shown)] == ["v321"]
    assert "1 record found; 1 record read" in shown.stderr


def test_what_is_behind_an_open_transaction_is_shown_as_such(group: GroupTopics, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": group.bootstrap, "transactional.id": f"open-{group.group}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(group.main, b"of the transaction", KEY, 0)
    producer.flush(SECONDS)
    produce(group.bootstrap, group.main, [Out(b"behind it", KEY, (), 0), Out(b"elsewhere", KEY, (), 1)])
    try:
        found = rows(for_group(tmp_path, group, "find", "--key", "customer-7"))
        assert {row["value"]: row["where"] for row in found} == {
            "of the transaction": "uncommitted", "behind it": "uncommitted", "elsewhere": "undelivered",
        }  # fmt: skip
    finally:
        producer.abort_transaction(SECONDS)
    after = rows(for_group(tmp_path, group, "find", "--key", "customer-7"))
    assert {row["value"]: row["where"] for row in after} == {"behind it": "undelivered", "elsewhere": "undelivered"}


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_limit_leaves_out_the_oldest_and_ends_with_3(group: GroupTopics, tmp_path: Path) -> None:
    now = wall()
    for part in (0, 1):  # each younger than all before it
        records = [Out(b"v%d" % (2 * one + part), KEY, (), part, now - 60_000 + 2 * one + part) for one in range(300)]
        produce(group.bootstrap, group.main, records)
    shown = for_group(tmp_path, group, "find", "--key", "customer-7", "--limit", "5")
    assert [row["value"] for row in rows(shown, 3)] == ["v599", "v598", "v597", "v596", "v595"]
    assert "incomplete: the newest 5 are shown, and older records were not searched" in shown.stderr


def test_max_bytes_leaves_out_the_oldest_and_ends_with_3(group: GroupTopics, tmp_path: Path) -> None:
    values = [b"first", *(b"%04d" % number + b"x" * 1_000 for number in range(1_000)), b"last"]
    produce(group.bootstrap, group.main, [Out(value, None, (), 0) for value in values])
    last = for_group(tmp_path, group, "find", "last", "--max-bytes", "100000")
    assert [row["value"] for row in rows(last, 3)] == ["last"]
    first = for_group(tmp_path, group, "find", "first", "--max-bytes", "100000")
    assert rows(first, 3) == []
    assert "incomplete: after 10" in first.stderr
    assert [row["value"] for row in rows(for_group(tmp_path, group, "find", "first"))] == ["first"]


PROBE = """
import resource, sys
from reconsume.sidecar.find.finder import find
from reconsume.sidecar.find.match import Query
from reconsume.sidecar.settings import load
from reconsume.sidecar.settings.policy import build_policy
from pathlib import Path

settings = load(Path(sys.argv[1]), ())
policy = build_policy(settings, "test")

def search(text, **more):
    found = find(settings, policy, Query(text=text, **more), values=True)
    return found.records, [match.value.decode()[:9] for match in found.matches], found.left_out

first = search(b"r-0199999", since=int(sys.argv[2]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
oldest = search(b"r-0000000")
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(repr((first, oldest, grown)))
"""


def test_a_log_of_200_000_records_is_searched_in_bounded_memory_and_since_does_not_read_its_beginning(
    group: GroupTopics, tmp_path: Path
) -> None:
    began = wall() - 400_000
    filler = b"x" * 300
    records = (Out(b"r-%07d" % number + filler, None, (), number % 2, began + number) for number in range(200_000))
    produce(group.bootstrap, group.main, records)
    for_group(tmp_path, group, "config", "check")  # writes the configuration
    words = [sys.executable, "-c", PROBE, str(tmp_path / "reconsume.yaml"), str(began + 199_000)]
    probe = subprocess.run(words, capture_output=True, check=True, text=True, timeout=SECONDS)
    (read_since, newest, _), (read, oldest, left_out), grown_kib = ast.literal_eval(probe.stdout)
    assert (newest, oldest, left_out) == (["r-0199999"], ["r-0000000"], [])
    assert (read_since, read) == (1_000, 200_000)
    assert grown_kib < 24 * 1024, "60 MB of values were read"


# --- hostile records --------------------------------------------------------------------------------------------------


def test_hostile_records_are_passed_by_or_found_as_broken(group: GroupTopics, tmp_path: Path) -> None:
    level, now = next(iter(group.levels)), wall()
    produce_raw(group.bootstrap, level, 0, b"needle", KEY, [(b"\xff\xfe", b"v")])
    many = tuple((f"h{number}", b"v") for number in range(50_000))
    forged = (("RECONSUMETIMES", b"-1"), ("RETRY_DUE_AT", b"9" * 40), ("REAL_TOPIC", None))
    hostile = [
        Out(b"needle", b"\x1b[31m\xff", many, 0),
        Out(b"needle", None, forged, 0),
        Out(None, None, (), 0),
        copy(group, level, 41, b"\x1b]0;needle\x07"),
    ]
    for topic in (level, group.names.ready, group.dlq):
        produce(group.bootstrap, topic, hostile)
    produce(group.bootstrap, group.main, [out._replace(timestamp=1 if out.key else now) for out in hostile])

    shown = for_group(tmp_path, group, "find", "needle", "-o", "tsv")

    assert shown.exit_code == 0, shown.stderr
    assert not set("\x1b\x07") & set(shown.stdout + shown.stderr)
    lines = [line.split("\t") for line in shown.stdout.splitlines()[1:]]
    assert sum(line[1] == "broken" for line in lines) == 5
    assert sum(line[1] == "undelivered" for line in lines) == 3
    table = for_group(tmp_path, group, "find", "needle", "-o", "table")
    assert (table.exit_code, "\x1b" in table.stdout) == (0, False)


# --- the other commands -----------------------------------------------------------------------------------------------


def test_retries_list_by_key_or_content_searches_the_retry_topics_alone(group: GroupTopics, tmp_path: Path) -> None:
    level = next(iter(group.levels))
    produce(group.bootstrap, group.main, [Out(b"A-99", KEY, (), 0)])
    produce(group.bootstrap, level, [copy(group, level, 41, b'{"sku": "A-99"}')])
    for words in (("--key", "customer-7"), ("--contains", "A-99")):
        [row] = rows(for_group(tmp_path, group, "retries", "list", *words))
        assert (row["id"], row["where"]) == (f"{group.main}:0:41", "waiting")
    mixed = for_group(tmp_path, group, "retries", "list", "--key", "customer-7", "--state", "DLQ")
    assert mixed.exit_code == 2
    assert "search what waits in the retry topics" in " ".join(mixed.stderr.split())


def test_retries_show_has_the_value_of_the_newest_copy_and_of_a_done_record_that_of_the_main_topic(
    kafka: Broker, tmp_path: Path
) -> None:
    group = create_group(fresh_group(kafka.bootstrap), also=(Kind.POLICY, Kind.VIEW))
    level = next(iter(group.levels))
    produce(group.bootstrap, group.main, [Out(b"as it was", KEY, (), 0)])
    produce(group.bootstrap, level, [copy(group, level, 0, b'{"as": "it is"}')])
    done_to(group, group.main, 1, group.group)
    view = {"view": {"source": "events"}}

    def shown(ident: str) -> Result:
        return for_group(tmp_path, group, "retries", "show", ident, "--value", **view)

    [waiting] = rows(shown(f"{group.main}:0:0"))
    assert (waiting["copy"]["position"], waiting["copy"]["key"]) == (f"{level}:0:0", "customer-7")
    assert waiting["copy"]["value"]["shown"] == '{\n  "as": "it is"\n}'
    done_to(group, level, 1, group.names.retry_group)
    [done] = rows(shown(f"{group.main}:0:0"))
    assert (done["copy"]["position"], done["copy"]["value"]["shown"]) == (f"{group.main}:0:0", "as it was")
    absent = shown(f"{group.main}:0:77")
    assert (absent.exit_code, "there is no record" in absent.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give a TEXT, --key, --id or --topic"),
        (("--in", "value", "--key", "k"), "there is no TEXT"),
        (("x" * 2_000,), "at most 1024 characters"),
        (("x", "--topic", "nobodys"), "none of the group's topics"),
    ],
)
def test_a_search_for_nothing_or_elsewhere_is_wrong_usage(
    group: GroupTopics, tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    refused = for_group(tmp_path, group, "find", *words)
    assert refused.exit_code == 2
    assert why in " ".join(refused.stderr.replace("│", " ").split())
