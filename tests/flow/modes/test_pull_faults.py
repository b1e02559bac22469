"""Pull mode when partitions move, sidecars die or drain: which verdicts still count, and that nothing is lost."""

from __future__ import annotations

import threading

import pytest

from reconsume.sidecar.core.pace.topic_turns import RESERVE
from tests.flow.conftest import FreshGroup, StartSidecar
from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, produce
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect, read_committed_progress
from tests.support.proof.ledger import Ledger
from tests.support.proof.quiet import await_quiet
from tests.support.rings import inner
from tests.support.service.puller import PULL, Got, Puller
from tests.support.sidecar.owned import owned
from tests.support.sidecar.process import Exit

PARTITIONS = 4
LEASED = 20
ALONE = LEASED - LEASED // RESERVE
"""What one topic takes of them beside others (contract 8.8)."""


def receive_all(puller: Puller, count: int, invisible: str = "10m", most: int = 0) -> list[Got]:
    """Receive until so many records are leased, or up to `most`."""
    found: list[Got] = []

    def enough() -> bool:
        found.extend(puller.receive(128, invisible, "200ms"))
        return len(found) >= count

    until(enough, 30, f"{count} records are received")
    assert count <= len(found) <= (most or count)
    return found


def receive_some(puller: Puller) -> list[Got]:
    """Receive at least one record, and leave it leased."""
    return until(lambda: puller.receive(128, "10m", "200ms"), 30, "something is received")


def spread(count: int) -> list[Out]:
    return [Out(b"%d" % number, partition=number % PARTITIONS) for number in range(count)]


def covered(group: GroupTopics, ids: list[str]) -> list[str]:
    """Those of the records that the group's committed progress calls done."""
    progress = read_committed_progress(group, group.group, group.mains)
    done = []
    for ident in ids:
        topic, partition, offset = ident.split(":")
        reached = progress.get((topic, int(partition)))
        if reached is not None and reached.covers(int(offset)):
            done.append(ident)
    return done


def test_a_verdict_after_a_rebalance_is_fenced_and_commits_nothing(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    group = create_group(new_group(), PARTITIONS)
    overrides = {**PULL, "lock_timeout": "1s"}
    first = start_sidecar(group, "", "pod-0", overrides)
    mine = Puller(first, ledger)
    produce(group.bootstrap, group.main, spread(40))
    leased = receive_all(mine, 40)
    second = start_sidecar(group, "", "pod-1", overrides)
    theirs = Puller(second, ledger)
    assert theirs.receive() == [], "with the first receive it joins"
    second.until(lambda: len(owned(second)) == PARTITIONS // 2, 20, "the second has half")
    moved = [one for one in leased if int(one.id.split(":")[1]) in owned(second)]
    assert len(moved) == 20
    again = receive_all(theirs, len(moved))
    assert {one.id for one in again} == {one.id for one in moved}
    assert {one.times for one in again} == {0}
    assert set(mine.ack(*moved)) == {"fenced"}
    assert mine.nack(moved[0]) == ["fenced"]
    assert mine.later(moved[0]) == "fenced"
    assert mine.change(moved[0], "1m") == "fenced"
    assert theirs.ack(moved[0]) == ["fenced"], "a handle of another sidecar"
    assert first.metric("reconsume_fenced_answers_total") == len(moved) + 3
    stayed = [one for one in leased if one not in moved]
    assert set(mine.ack(*stayed)) == {"ok"}
    assert first.stop().code == 0
    assert sorted(covered(group, [one.id for one in leased])) == sorted(one.id for one in stayed)
    assert set(theirs.ack(*again)) == {"ok"}
    await_quiet(group, 20)
    assert second.stop().code == 0
    report = check(collect(group, ledger))
    assert (report.committed, report.waiting, report.retries, report.duplicates) == (40, 0, 0, len(moved)), report


def test_a_partition_that_moves_waits_for_the_verdicts_on_its_leases(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    """Within the lock's time the service may still answer; then nothing is delivered twice."""
    group = create_group(new_group(), PARTITIONS)
    overrides = {**PULL, "lock_timeout": "20s", "pull": {"min_invisible": "100ms", "max_leased": LEASED}}
    first = start_sidecar(group, "", "pod-0", overrides)
    mine = Puller(first, ledger)
    records = spread(40)
    produce(group.bootstrap, group.main, records[:20])
    leased = receive_all(mine, ALONE, most=LEASED)  # of every partition, so also of those that are to move
    produce(group.bootstrap, group.main, records[20:])
    leased += mine.receive()  # until the lane of retries has its partitions, the topic is alone, and takes all
    assert len(leased) <= LEASED, "no more than max_leased"
    second = start_sidecar(group, "", "pod-1", overrides)
    assert Puller(second, ledger).receive() == [], "with the first receive it joins"
    first.until(lambda: "closing" in {p["not_fetched"] for p in first.status()["partitions"]}, 20, "a lock is asked")
    assert set(mine.ack(*leased)) == {"ok"}
    second.until(lambda: len(owned(second)) == PARTITIONS // 2, 20, "the second has half")
    pullers = (mine, Puller(second, ledger))

    def done() -> bool:
        for puller in pullers:
            got = puller.receive()
            if got:
                assert set(puller.ack(*got)) == {"ok"}
        return len(ledger.taken()) == 40

    until(done, 20, "all are taken")
    assert [first.stop().code, second.stop().code] == [0, 0]
    report = check(collect(group, ledger))
    assert (report.committed, report.waiting, report.duplicates) == (40, 0, 0), report


@pytest.mark.parametrize("kills", inner(1, [1, 2]))
def test_a_sidecar_killed_with_leases_out_loses_nothing(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger, kills: int
) -> None:
    """After a second death in a row records are given out one at a time: one of them might be what kills."""
    group = create_group(new_group(), PARTITIONS)
    sidecar = start_sidecar(group, "", "pod-0", {**PULL, "kafka": {"session.timeout.ms": 2_000}})
    puller = Puller(sidecar, ledger)
    produce(group.bootstrap, group.main, spread(60))
    leased = receive_all(puller, 60)
    assert set(puller.ack(*leased[:20])) == {"ok"}
    assert puller.later(leased[20], delay="1s") == "ok"
    assert puller.nack(leased[21]) == ["ok"]
    for number in range(kills):
        sidecar.kill()
        sidecar.start()
        sidecar.wait_ready()
        assert set(puller.ack(*leased[22:])) == {"fenced"}
        if number + 1 < kills:
            assert receive_some(puller)

    def take() -> None:
        got = puller.receive(128, "30s", "200ms")
        if got:
            assert set(puller.ack(*got)) == {"ok"}

    await_quiet(group, 60, meanwhile=take)  # also what was taken just before a kill comes once more
    assert sidecar.stop().code == 0
    report = check(collect(group, ledger))
    assert (report.committed, report.dead_lettered, report.waiting) == (60, 0, 0), report
    assert 38 <= report.duplicates <= 60 * kills, report


def test_a_drain_gives_out_nothing_more_and_waits_for_the_verdicts(
    new_group: FreshGroup, start_sidecar: StartSidecar, ledger: Ledger
) -> None:
    group = create_group(new_group(), PARTITIONS)
    sidecar = start_sidecar(group, "", "pod-0", PULL)
    puller = Puller(sidecar, ledger)
    produce(group.bootstrap, group.main, spread(20))
    leased = receive_all(puller, 20)
    ends: list[Exit] = []
    stopping = threading.Thread(target=lambda: ends.append(sidecar.stop()))
    with puller.begin("receive", {"wait": "60s"}) as waits:
        assert sidecar.status()["in_flight"] == 20  # the call before this one is under way
        stopping.start()
        assert waits().json == {"records": []}
    until(lambda: puller.call("receive", {"wait": "0s"}).status == 503, 10, "receive is refused")
    assert sidecar.running
    assert set(puller.ack(*leased)) == {"ok"}
    stopping.join(15)
    assert [end.code for end in ends] == [0]
    assert "left=0" in sidecar.log() or '"left": 0' in sidecar.log()
    report = check(collect(group, ledger))
    assert (report.committed, report.waiting, report.duplicates) == (20, 0, 0), report
