"""Input that nobody should send: odd bytes, hostile headers, unreadable headers, records too large for their copy.

One sidecar gets all of it at once; it must live, and what is good must not notice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

from reconsume.topics import retry_headers as wire
from reconsume.topics.dead_letter_headers import DLQ_MESSAGE, DLQ_OFFSET
from reconsume.topics.render_headers import DROPPED, render_retry_headers
from tests.flow.conftest import FreshGroup, StartService, StartSidecar
from tests.support.kafka.group_topics import GroupTopics, create_group, set_config
from tests.support.kafka.raw_producer import produce_raw
from tests.support.kafka.topic_io import UNREADABLE, Out, Row, dump, produce
from tests.support.proof.checker import Report, check
from tests.support.proof.evidence import Copy, Evidence, collect
from tests.support.proof.ledger import Delivery
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request, verdict

GOOD = 2_000
"""So many good records come before the unreadable ones: only in hot code does the client's fault end the process."""
LARGE = random.Random(1).randbytes(900 * 1024)
OVERSIZE = b"oversize:" + random.Random(2).randbytes(300 * 1024)
SMALL_LIMIT = "100000"
OWN = (("a", b"1"), ("b", b"\xff\x00"), ("a", None), ("é", b""))

BYTES: dict[str, Out] = {
    "null value": Out(None, b"nv", OWN),
    "empty value": Out(b"", b"ev", OWN),
    "null key": Out(b"fail: null key", None, OWN),
    "empty key": Out(b"fail: empty key", b"", OWN),
    "binary key": Out(b"fail: binary key", b"\xff\x00\r\n", OWN),
    "900 KiB": Out(LARGE, b"large", OWN),
    "many headers": Out(b"fail: many headers", b"mh", tuple((f"h{n}", b"x" * 50) for n in range(1_000))),
}

FAR = b"%d" % ((int(time.time()) + 30 * 86_400) * 1000)
SPOOFED = (
    ("a", b"1"),
    (wire.RECONSUMETIMES, b"15"),
    (wire.REAL_TOPIC, b"payroll"),
    (wire.ORIGIN_MESSAGE_ID, b"payroll:0:0"),
    ("a", None),
    (wire.RETRY_DUE_AT, FAR),
    (wire.RETRY_REDRIVES, b"9"),
    (wire.RETRY_TOPIC, b"payroll"),
    (DLQ_MESSAGE, b"spoof"),
)

Headers = list[tuple[str, bytes | None]]
Hostile = Callable[[Headers], Headers]


def put(key: str, value: bytes | None) -> Hostile:
    """One header of ours with another value."""
    return lambda headers: [(name, value if name == key else old) for name, old in headers]


def doubled(key: str) -> Hostile:
    return lambda headers: [*headers, *(header for header in headers if header[0] == key)]


def missing(key: str) -> Hostile:
    return lambda headers: [header for header in headers if header[0] != key]


HOSTILE: dict[str, Hostile] = {
    "times -1": put(wire.RECONSUMETIMES, b"-1"),
    "times abc": put(wire.RECONSUMETIMES, b"abc"),
    "times 10^30": put(wire.RECONSUMETIMES, b"1" + b"0" * 30),
    "times 1_0": put(wire.RECONSUMETIMES, b"1_0"),
    "times in other digits": put(wire.RECONSUMETIMES, "٠١".encode()),
    "times with a blank": put(wire.RECONSUMETIMES, b" 1"),
    "times empty": put(wire.RECONSUMETIMES, b""),
    "times null": put(wire.RECONSUMETIMES, None),
    "times missing": missing(wire.RECONSUMETIMES),
    "times twice": doubled(wire.RECONSUMETIMES),
    "foreign topic": put(wire.REAL_TOPIC, b"payroll"),
    "foreign id": put(wire.ORIGIN_MESSAGE_ID, b"payroll:0:0"),
    "id of no form": put(wire.ORIGIN_MESSAGE_ID, b"x"),
    "topic twice": doubled(wire.REAL_TOPIC),
    "due far off": put(wire.RETRY_DUE_AT, FAR),
    "due negative": put(wire.RETRY_DUE_AT, b"-5"),
    "no header at all": lambda _headers: [],
    "long reason": put(wire.RETRY_REASON, b"x" * 1_025),
}


class Run(NamedTuple):
    """What came of all of it. While the oversize record was held: what its level had in it (`while_held`), how many
    records each main partition held, and the last error. `pids`: the process's id at the start and at the end."""

    group: GroupTopics
    evidence: Evidence
    report: Report
    ids: dict[str, str]
    hostile: dict[str, str]
    unreadable: dict[str, str]
    oversize: str
    while_held: tuple[Row, ...]
    held: list[int]
    loud: str
    pids: tuple[int, int]

    def copies(self, case: str) -> list[Copy]:
        life = self.evidence.lives.get((self.ids[case], 0), {})
        return [copy for _, chain in sorted(life.items()) for copy in chain]

    def deliveries(self, case: str) -> list[Delivery]:
        return [delivery for delivery in self.evidence.deliveries if delivery.id == self.ids[case]]

    def dead(self, place: str) -> Copy:
        (copy,) = (copy for copy in self.evidence.dead if copy.id == place)
        return copy


def script(request: Request) -> Behaviour:
    """Odd bytes fail once, so that there is a copy to look at; the oversize record asks for the narrow level."""
    value = request.value or b""
    if value.startswith(b"good") or request.times:
        return OK
    return verdict("retry; level=2") if value.startswith(b"oversize:") else FAIL


def our_headers(group: GroupTopics, topic: str) -> Headers:
    """Good headers of a waiting retry, to be spoilt."""
    now = int(time.time() * 1000)
    return render_retry_headers(
        wire.RetryState(f"{group.main}:0:0", group.main, 1, 0, now, now, now, "x"), group.group, topic
    )


def plant(group: GroupTopics) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Produce everything but the oversize record: ids of odd and spoofed records, hostile and unreadable places."""
    level, ready = group.names.level(1_000, group.main), group.names.ready
    produce(group.bootstrap, group.main, [Out(b"good:%d" % number) for number in range(GOOD)])
    odd = {**BYTES, "spoofed": Out(b"fail: spoofed", b"s", SPOOFED)}
    places = produce(group.bootstrap, group.main, odd.values())
    ids = {name: f"{group.main}:{p}:{offset}" for name, (p, offset) in zip(odd, places, strict=True)}
    hostile = {}
    for topic, cases in ((level, list(HOSTILE)), (ready, ["times abc", "foreign topic", "no header at all"])):
        headers = our_headers(group, topic)
        outs = [Out(b"hostile", b"k", (*OWN, *HOSTILE[name](headers))) for name in cases]
        for name, (p, offset) in zip(cases, produce(group.bootstrap, topic, outs), strict=True):
            hostile[name if topic == level else f"ready: {name}"] = f"{topic}:{p}:{offset}"
    unreadable = {}
    for name, topic in (("main", group.main), ("level", level)):
        bad = [(b"fine", b"1"), (b"\xff\xfe", b"2")]
        unreadable[name] = f"{topic}:0:{produce_raw(group.bootstrap, topic, 0, b'unreadable', b'uk', bad)}"
    return ids, hostile, unreadable


@pytest.fixture(scope="module")
def run(new_group: FreshGroup, start_service: StartService, start_sidecar: StartSidecar) -> Run:
    group = new_group()
    narrow = group.names.level(2_000, group.main)
    create_group(group, config={narrow: {"max.message.bytes": SMALL_LIMIT}})
    service = start_service(script)
    sidecar = start_sidecar(group, service.url)
    pid = sidecar.pid
    ((p, offset),) = produce(group.bootstrap, group.main, [Out(OVERSIZE, b"big", OWN)])
    oversize = f"{group.main}:{p}:{offset}"
    ids, hostile, unreadable = plant(group)
    everything_else = GOOD + len(ids)
    sidecar.until(
        lambda: len(service.ledger.taken()) == everything_else, 30, f"{everything_else} other records are taken"
    )
    sidecar.until(
        lambda: len(dump(group.bootstrap, group.dlq)) == len(hostile) + len(unreadable), 15, "the bad ones are dead"
    )
    sidecar.wait_log(narrow)
    held = [part["refused_copies"] for part in sidecar.status()["partitions"] if part["topic"] == group.main]
    loud = str(sidecar.status()["last_error"])
    while_held = tuple(dump(group.bootstrap, narrow))
    set_config(group.bootstrap, narrow, "max.message.bytes", "1000000")
    sidecar.until(lambda: oversize in service.ledger.taken(), 20, "the oversize record is delivered again")
    pids = (pid, sidecar.pid if sidecar.running else -1)
    sidecar.stop()
    evidence = collect(group, service.ledger)
    found = check(evidence)
    return Run(group, evidence, found, ids, hostile, unreadable, oversize, while_held, held, loud, pids)


def test_the_process_lives_through_all_of_it(run: Run) -> None:
    assert run.pids[0] == run.pids[1]


def test_good_records_do_not_notice(run: Run) -> None:
    assert run.report.committed == GOOD + len(run.ids) + 1
    assert run.report.duplicates == 0


@pytest.mark.parametrize("case", BYTES)
def test_odd_bytes_survive_a_retry_untouched(run: Run, case: str) -> None:
    """The checker compares key, value and headers of every copy and delivery; here stands that there was a copy."""
    (copy,) = run.copies(case)
    assert (copy.row.key, copy.row.value) == (BYTES[case].key, BYTES[case].value)
    first, second = run.deliveries(case)
    assert (first.value, first.key, second.value, second.key) == (copy.row.value, copy.row.key) * 2


def test_our_headers_on_a_main_topic_are_ignored_and_kept_under_another_name(run: Run) -> None:
    first, second = run.deliveries("spoofed")
    assert (first.times, first.redrives, second.times, second.redrives) == (0, 0, 1, 0)
    (copy,) = run.copies("spoofed")
    assert copy.row.headers[:2] == (("a", b"1"), ("a", None))
    ours = list(dict(render_retry_headers(wire.RetryState("", ""), "", "")))
    assert [name for name, _ in copy.row.headers[-len(ours) :]] == ours
    assert list(copy.row.headers[2 : -len(ours)]) == [
        (f"ORIGINAL_{name}", value) for name, value in SPOOFED if name in DROPPED
    ]
    assert copy.ours[wire.REAL_TOPIC] == run.group.main.encode()


@pytest.mark.parametrize("case", [*HOSTILE, "ready: times abc", "ready: foreign topic", "ready: no header at all"])
def test_broken_headers_on_our_topics_are_dead_letters_under_their_own_place(run: Run, case: str) -> None:
    dead = run.dead(run.hostile[case])
    assert dead.ours[wire.RETRY_REASON].startswith(b"bad-header")
    assert (dead.times, dead.redrives, dead.row.key, dead.row.value) == (0, 0, b"k", b"hostile")
    assert dead.row.headers[: len(OWN)] == OWN
    assert not [delivery for delivery in run.evidence.deliveries if delivery.value == b"hostile"]


@pytest.mark.parametrize("topic", ["main", "level"])
def test_a_header_key_that_is_not_utf8_ends_in_the_dlq_with_key_and_value_intact(run: Run, topic: str) -> None:
    source = {row.value: row for rows in run.evidence.mains.values() for row in rows}[b"unreadable"]
    assert source.headers == UNREADABLE, "the raw record is not what this test is about"
    dead = run.dead(run.unreadable[topic])
    assert (dead.row.key, dead.row.value) == (b"uk", b"unreadable")
    assert dead.ours[wire.RETRY_REASON].startswith(b"headers-unreadable")
    assert dict(dead.row.headers)[DLQ_OFFSET] == run.unreadable[topic].rpartition(":")[2].encode()
    assert not [delivery for delivery in run.evidence.deliveries if delivery.value == b"unreadable"]


def test_a_copy_that_is_too_large_is_held_and_loud_until_the_topic_takes_it(run: Run) -> None:
    narrow = run.group.names.level(2_000, run.group.main)
    assert run.while_held == ()
    assert sorted(run.held) == [0, 1]
    assert narrow in run.loud
    assert "too large" in run.loud
    (copy,) = (copy for chain in run.evidence.lives[run.oversize, 0].values() for copy in chain)
    assert (copy.topic, copy.times, copy.row.value) == (narrow, 1, OVERSIZE)
