"""`settle --waiting` and `settle ID` on a real broker, without a sidecar: the plan, the decision, and following it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from reconsume.sidecar.core.progress import LogId, Progress
from reconsume.topics.names import Kind
from reconsume.topics.partition import Partition
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.level_copies import Owner, commit_progress, decisions_of, level_copy, topic_digest
from tests.support.kafka.queue_copies import queue_copy
from tests.support.kafka.topic_io import Out, create_topic, dump, produce
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.dlq_calls import rows
from tests.support.sidecar.settling import Following

HOUR, MINUTE = 3_600_000, 60_000
Settle = Callable[..., Result]


@pytest.fixture
def group(kafka: Broker) -> GroupTopics:
    return create_group(fresh_group(kafka.bootstrap, 2, (MINUTE, HOUR)), partitions=2, also=[Kind.POLICY])


@pytest.fixture
def file(group: GroupTopics, tmp_path: Path) -> Path:
    tree = {
        "group": group.group,
        "topics": list(group.mains),
        "kafka": {"bootstrap.servers": group.bootstrap},
        "deliver": {"url": "http://127.0.0.1:1/"},
        "retry": {"levels": ["1m", "1h"], "ladder": ["1m", "1h"]},
    }
    (tmp_path / "settle.json").write_text(json.dumps(tree), encoding="utf-8")
    return tmp_path / "settle.json"


@pytest.fixture
def settle(file: Path) -> Settle:
    return lambda *words: reconsume("settle", *words, "-c", file)


@pytest.fixture
def waiting(group: GroupTopics) -> GroupTopics:
    """Seven records wait: five for http-503 in 1h, of which one hops and one is another topic's; two more in 1m."""
    hour, minute = group.names.level(HOUR, ""), group.names.level(MINUTE, "")
    copies = [level_copy(group, hour, number, partition=number % 2) for number in range(3)]
    copies += [level_copy(group, hour, 3, main=group.mains[1], key=b"other")]
    produce(group.bootstrap, hour, copies)
    produce(group.bootstrap, minute, [level_copy(group, minute, 4), Out(b"foreign", partition=0)])
    late = [level_copy(group, minute, 5, reason="http-500", wait=MINUTE), level_copy(group, minute, 6, wait=5_000)]
    produce(group.bootstrap, minute, late)
    return group


@pytest.fixture
def follow(file: Path) -> Iterator[Callable[..., Following]]:
    """`follow("--waiting", …)` begins a `Following`, which is killed at the end."""
    begun: list[Following] = []

    def begin(*words: str) -> Following:
        begun.append(Following(file, *words))
        return begun[-1]

    yield begin
    for one in begun:
        one.kill()


Follow = Callable[..., Following]


# --- the plan --------------------------------------------------------------------------------------------------------


def counted(ended: Result) -> set[tuple[str, str, str, int, int]]:
    return {(row["topic"], row["level"], row["reason"], row["records"], row["due_soon"]) for row in rows(ended)}


def test_a_dry_run_counts_what_waits_by_topic_level_and_reason_and_writes_nothing(
    waiting: GroupTopics, settle: Settle
) -> None:
    """A record in 1m that began its wait in 1h counts as one of 1h; what is due within 10 s is counted apart."""
    planned = settle("--waiting", "--retry-now", "--why", "fixed", "--dry-run")
    main, other = waiting.mains
    assert planned.exit_code == 0, planned.stderr
    assert counted(planned) == {
        (main, "1h", "http-503", 4, 0),
        (other, "1h", "http-503", 1, 0),
        (main, "1m", "http-500", 1, 0),
        (main, "ready", "http-503", 1, 1),
    }
    assert "not written by Reconsume, and left alone: 1 record" in planned.stderr
    assert "due within 10 s" in planned.stderr
    assert dump(waiting.bootstrap, waiting.names.policy) == []


@pytest.mark.parametrize(
    ("conditions", "records"),
    [
        (["--reason", "http-500"], 1),
        (["--level", "1h"], 5),
        (["--level", "1h", "--key", "other"], 1),
        (["--key-base64", "b3RoZXI="], 1),
        (["--level", "30m"], 0),
        (["--level", "parked"], 0),
    ],
)
def test_each_condition_narrows_it(waiting: GroupTopics, settle: Settle, conditions: list[str], records: int) -> None:
    planned = settle("--waiting", *conditions, "--commit", "--why", "x", "--dry-run")
    assert (planned.exit_code, sum(row["records"] for row in rows(planned))) == (0, records), planned.stderr


def test_where_nothing_fits_nothing_is_written(waiting: GroupTopics, settle: Settle) -> None:
    nothing = settle("--waiting", "--reason", "http-404", "--commit", "--why", "x", "--yes")
    assert (nothing.exit_code, rows(nothing)) == (0, [])
    assert "nothing that waits fits" in nothing.stderr
    assert decisions_of(waiting) == {}


def test_what_was_settled_before_its_turn_waits_no_more(waiting: GroupTopics, file: Path, settle: Settle) -> None:
    """Progress says that owners have noted something; a note about a former topic of the name means nothing."""
    hour = waiting.names.level(HOUR, "")
    planned = settle("--waiting", "--level", "1h", "--commit", "--why", "x", "--dry-run")
    before = sum(row["records"] for row in rows(planned))
    log = LogId("00c0ffee", topic_digest(waiting, hour))
    commit_progress(waiting, Partition(hour, 0), Progress(0, clean=True, notes=True, log=log))
    owner = Owner(waiting)
    owner.settle_early(Partition(hour, 0), "0badcafe", 0, 1)
    assert len(rows(reconsume("find", "--topic", waiting.main, "-c", file))) == 6
    owner.settle_early(Partition(hour, 0), log.topic, 1)
    planned = settle("--waiting", "--level", "1h", "--commit", "--why", "x", "--dry-run")
    assert sum(row["records"] for row in rows(planned)) == before - 1
    assert len(rows(reconsume("find", "--topic", waiting.main, "-c", file))) == 5


# --- the decision ----------------------------------------------------------------------------------------------------


def test_one_record_of_the_log_is_the_decision_and_it_is_followed_until_the_owners_have_finished(
    waiting: GroupTopics, follow: Follow
) -> None:
    following = follow("--waiting", "--level", "1h", "--commit", "--why", "paid", "--who", "ann", "--rate", "5/s")
    ident = following.decision
    (record,) = decisions_of(waiting).values()
    assert (record.how, record.why, record.who, record.level, record.rate) == ("commit", "paid", "ann", "1h", "5/s")
    hour, minute = waiting.names.level(HOUR, ""), waiting.names.level(MINUTE, "")
    ranges = [(one.topic, one.partition, one.start, one.end) for one in record.ranges]
    assert ranges == [(hour, 0, 0, 3), (hour, 1, 0, 1), (minute, 0, 0, 4)], "where something fits, up to the end"
    assert all(len(one.log) == 8 for one in record.ranges)
    owner = Owner(waiting)
    owner.note(ident, 2, finished=False)
    assert following.process.poll() is None
    owner.note(ident, 4, without_effect=1)
    code, planned, said = following.end()
    assert code == 0, said
    assert "settled 4 records: done; 1 had ended" in said
    assert {row["decision"] for row in planned} == {ident}
    assert decisions_of(waiting) == {}, "it has ended"


def test_the_command_may_be_killed_after_its_first_line(waiting: GroupTopics, follow: Follow, settle: Settle) -> None:
    """The decision stays in the log; its status is shown by its id, before and after it was carried out."""
    following = follow("--waiting", "--retry-now", "--why", "fixed")
    ident = following.decision
    following.kill()
    shown = settle("--status", ident)
    (row,) = rows(shown)
    assert (shown.exit_code, row["state"], row["done"], row["how"]) == (3, "open", 0, "retry-now")
    Owner(waiting).note(ident, 7)
    shown = settle("--status", ident)
    assert (shown.exit_code, rows(shown)[0]["state"], rows(shown)[0]["done"]) == (0, "finished", 7)
    assert settle("--status", "unknown").exit_code == 1


def test_an_interrupt_ends_the_following_and_not_the_decision(waiting: GroupTopics, follow: Follow) -> None:
    following = follow("--waiting", "--retry-now", "--why", "fixed")
    ident = following.decision
    following.interrupt()
    code, _, said = following.end()
    assert (code, "so far; the owners go on" in said) == (3, True), said
    assert ident in decisions_of(waiting)


def test_a_decision_that_is_ended_ends_its_following_too(waiting: GroupTopics, follow: Follow, settle: Settle) -> None:
    following = follow("--waiting", "--retry-now", "--why", "fixed")
    ident = following.decision
    ended = settle("--end", ident)
    assert ended.exit_code == 0, ended.stderr
    code, _, said = following.end()
    assert (code, "was ended before all was done" in said) == (3, True), said
    assert settle("--end", ident).exit_code == 1, "it is not open any more"


def test_a_decision_about_one_record_names_its_attempt_and_where_it_lies(waiting: GroupTopics, follow: Follow) -> None:
    ident = f"{waiting.main}:0:1"
    following = follow(ident, "--dead-letter", "--why", "x")
    decision = following.decision
    (record,) = decisions_of(waiting).values()
    assert (record.id, record.cycle, record.redrives, record.times) == (ident, 0, 0, 1)
    assert [(one.topic, one.partition) for one in record.ranges] == [(waiting.names.level(HOUR, ""), 1)]
    Owner(waiting).note(decision, 0, without_effect=1)
    code, (row,), said = following.end()
    assert (code, row["was"], row["is"]) == (1, "waiting", "a dead letter")
    assert f"nothing was settled: {ident} had ended or was delivered before" in said


def test_a_decision_that_is_over_or_finished_makes_room_for_the_next(waiting: GroupTopics, follow: Follow) -> None:
    first = follow("--waiting", "--level", "1h", "--commit", "--why", "x")
    ident = first.decision
    first.kill()
    Owner(waiting).note(ident, 1)
    second = follow("--waiting", "--level", "1h", "--commit", "--why", "x")
    latest = second.decision
    assert set(decisions_of(waiting)) == {latest}


# --- the queues of keys ----------------------------------------------------------------------------------------------


@pytest.fixture
def queued(kafka: Broker, tmp_path: Path) -> GroupTopics:
    """An ordered group: a record of `ada` waits with one behind it, and one of `bob` is parked with one behind it."""
    group = replace(fresh_group(kafka.bootstrap, delays=()), queued=True)
    create_group(group, partitions=1, also=[Kind.POLICY])
    (queue,) = group.queues
    copies = [queue_copy(queue, b"ada", 0, 1, topic=group.main), queue_copy(queue, b"ada", 1, topic=group.main)]
    copies += [queue_copy(queue, b"bob", 2, 1, parked=True, topic=group.main)]
    produce(group.bootstrap, queue, [*copies, queue_copy(queue, b"bob", 3, topic=group.main)])
    tree = {"group": group.group, "topics": [group.main], "kafka": {"bootstrap.servers": group.bootstrap}}
    deliver = {"url": "http://127.0.0.1:1/", "order": "key"}
    retry = {"ordered_ladder": ["1h"], "ordered_exhausted": "park"}
    text = json.dumps({**tree, "deliver": deliver, "retry": retry})
    (tmp_path / "settle.json").write_text(text, encoding="utf-8")
    return group


def levels(ended: Result) -> Counter[str]:
    return sum((Counter({row["level"]: row["records"]}) for row in rows(ended)), Counter())


def test_of_a_key_only_the_first_record_is_tried_now_and_the_other_decisions_are_about_all(
    queued: GroupTopics, tmp_path: Path
) -> None:
    def settle(*words: str) -> Result:
        return reconsume("settle", *words, "--why", "x", "-c", tmp_path / "settle.json")

    tried = settle("--waiting", "--retry-now", "--dry-run")
    assert (tried.exit_code, levels(tried)) == (0, {"ordered": 1, "parked": 1}), tried.stderr
    assert "2 records behind others of their keys stay" in tried.stderr
    done = settle("--waiting", "--commit", "--dry-run")
    assert levels(done) == {"ordered": 3, "parked": 1}
    assert "2 records of these wait behind others of their keys" in done.stderr
    assert levels(settle("--waiting", "--level", "parked", "--dead-letter", "--dry-run")) == {"parked": 1}
    behind = settle(f"{queued.main}:0:1", "--retry-now", "--yes")
    assert (behind.exit_code, "it waits behind" in behind.stderr) == (1, True), behind.stderr
    (row,) = rows(settle(f"{queued.main}:0:1", "--commit", "--dry-run"))
    assert (row["was"], row["is"]) == ("behind", "done")
    assert decisions_of(queued) == {}


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--commit", "--why", "x"], 2, "give the ID of a record, or --waiting"),
        (["orders:0:1", "--waiting", "--commit", "--why", "x"], 2, "give the ID of a record, or --waiting"),
        (["orders:0:1", "--level", "1h", "--commit", "--why", "x"], 2, "go with --waiting"),
        (["--waiting", "--why", "x"], 2, "say what to do with the record"),
        (["--waiting", "--commit"], 2, "the reason must be"),
        (["--waiting", "--topic", "other", "--commit", "--why", "x"], 2, "'other' is none of the group's topics"),
        (["--waiting", "--level", "main", "--commit", "--why", "x"], 2, "a level is ready, ordered, parked"),
        (["--waiting", "--rate", "50", "--commit", "--why", "x"], 2, "a rate is written like 50/s"),
        (["--waiting", "--key", "a", "--key-base64", "YQ==", "--commit", "--why", "x"], 2, "not both"),
        (["--waiting", "--commit", "--why", "x"], 2, "there is no terminal to ask on"),
    ],
)
def test_wrong_usage_changes_nothing(
    waiting: GroupTopics, settle: Settle, words: list[str], code: int, said: str
) -> None:
    refused = settle(*words)
    assert (refused.exit_code, said in refused.stderr) == (code, True), refused.stderr
    assert decisions_of(waiting) == {}


def test_a_record_that_does_not_wait_is_named(waiting: GroupTopics, settle: Settle) -> None:
    refused = settle(f"{waiting.main}:0:999", "--retry-now", "--why", "x", "--yes")
    assert (refused.exit_code, "does not wait in this group" in refused.stderr) == (1, True), refused.stderr


def test_in_mode_spark_nobody_owns_what_waits(waiting: GroupTopics, file: Path, settle: Settle) -> None:
    tree = json.loads(file.read_text("utf-8"))
    tree["deliver"] = {"mode": "spark"}
    file.write_text(json.dumps(tree), encoding="utf-8")
    refused = settle("--waiting", "--commit", "--why", "x", "--yes")
    assert (refused.exit_code, "no sidecar owns what waits" in refused.stderr) == (1, True), refused.stderr
    assert decisions_of(waiting) == {}


def test_a_policy_topic_with_one_partition_is_to_be_grown_first(kafka: Broker, tmp_path: Path) -> None:
    group = fresh_group(kafka.bootstrap, delays=(HOUR,))
    create_group(group, partitions=1)
    create_topic(kafka.bootstrap, group.names.policy, 1)
    hour = group.names.level(HOUR, "")
    produce(group.bootstrap, hour, [level_copy(group, hour, 1)])
    file = tmp_path / "one.json"
    tree = {"group": group.group, "topics": [group.main], "kafka": {"bootstrap.servers": group.bootstrap}}
    tree |= {"deliver": {"url": "http://127.0.0.1:1/"}, "retry": {"levels": ["1h"], "ladder": ["1h"]}}  # type: ignore[dict-item]
    file.write_text(json.dumps(tree), encoding="utf-8")
    refused = reconsume("settle", "--waiting", "--commit", "--why", "x", "--yes", "-c", file)
    assert (refused.exit_code, "topics apply" in refused.stderr) == (1, True), refused.stderr
