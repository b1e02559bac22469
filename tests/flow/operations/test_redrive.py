"""Dead letters brought back: once each, whoever is killed, whoever comes second, whatever dies meanwhile.

One group and one sidecar for all; the redrive is a process of its own behind the proxy. At the end everything that was
written is checked as after every crash test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.deadline import until
from tests.support.kafka.group_topics import GroupTopics, create_group, fresh_group
from tests.support.kafka.proxy_frames import INVALID_PRODUCER_EPOCH, error_of
from tests.support.kafka.proxy_rules import Api, Fate, Late, Moment, Rule
from tests.support.kafka.topic_io import dump
from tests.support.proof.checker import check
from tests.support.proof.evidence import collect
from tests.support.proof.quiet import await_quiet
from tests.support.rings import inner
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.redrive import SECONDS, DlqProcess, brought_back, dlq, let_die, lives_once_redriven
from tests.support.sidecar.scene import Proxied

pytestmark = pytest.mark.usefixtures("cleared")

COUNT = 60
RATE = ("--rate", "40", "--yes")
"""Transactions of 20."""


class Stage(NamedTuple):
    """A group whose records die, and come back to life when they are redriven."""

    proxied: Proxied
    group: GroupTopics
    service: Service
    folder: Path

    def redrive(self, *words: str) -> DlqProcess:
        """A redrive that goes through the proxy."""
        return DlqProcess(self.group, self.folder, "redrive", *words, bootstrap=self.proxied.proxy.address)

    def rule(self, api: Api, moment: Moment, action: object, nth: int, fate: Fate = Fate.PASS) -> Rule:
        """A rule for the redrive's producer."""
        client = f"reconsume-{self.group.names.redrive_group}"
        return self.proxied.proxy.add(Rule(api, client, moment, action, nth=nth, fate=fate))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def stage(proxied: Proxied, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Checked at its end: all that was redriven was delivered, counted and committed once."""
    folder = tmp_path_factory.mktemp("redrive")
    with ExitStack() as stack:
        group = create_group(fresh_group(proxied.kafka.bootstrap), partitions=3)
        service = stack.enter_context(Service(folder / "ledger.jsonl", lives_once_redriven))
        sidecar = stack.enter_context(SidecarProcess(group, service.url, folder))
        sidecar.wait_ready()
        yield Stage(proxied, group, service, folder)
        await_quiet(group, SECONDS)
        sidecar.stop()
        report = check(collect(group, service.ledger))
        assert report.waiting == 0
        assert report.duplicates == 0


def back(stage: Stage, name: str) -> Counter[tuple[bytes, int]]:
    """Those of that name on the ready topic, by value and redrives.

    Kafka answers a commit before the end of the transaction is in each partition: until then some cannot be read.
    """
    found = brought_back(stage.group)
    return Counter({key: times for key, times in found.items() if key[0].startswith(name.encode())})


def all_once(stage: Stage, name: str, count: int = COUNT) -> None:
    """Each record of that name is on the ready topic once, and was taken by the service."""
    until(lambda: len(back(stage, name)) >= count, SECONDS, "all have come back")
    found = back(stage, name)
    assert (len(found), set(found.values())) == (count, {1})
    wanted = {d.id for d in stage.service.ledger.deliveries() if (d.value or b"").startswith(name.encode())}
    until(lambda: wanted <= stage.service.ledger.taken(), SECONDS, "the service has taken all that came back")


def test_a_dead_letter_comes_back_with_a_new_life_and_is_committed(stage: Stage) -> None:
    only = ("redrive", "--header", "kind=plain")
    let_die(stage.group, COUNT, "plain")
    before = dump(stage.group.bootstrap, stage.group.names.ready)
    code, rows, told = dlq(stage.group, stage.folder, *only, "--dry-run")
    assert (code, {row["reason"]: row["letters"] for row in rows}) == (0, {"bad-sku": 20, "bad-tax": 20, "bad-day": 20})
    assert {(row["action"], row["target"]) for row in rows} == {("redrive", stage.group.names.ready)}
    assert dump(stage.group.bootstrap, stage.group.names.ready) == before
    code, rows, told = dlq(stage.group, stage.folder, *only, "--reason", "bad-tax", "--yes")
    assert (code, [(row["action"], row["letters"]) for row in rows]) == (0, [("redriven", 20)]), told
    code, rows, told = dlq(stage.group, stage.folder, *only, "--yes")
    assert code == 0
    assert {(row["action"], row["reason"], row["letters"]) for row in rows} == {
        ("redriven", "bad-sku", 20),
        ("redriven", "bad-day", 20),
        ("redriven before", "bad-tax", 20),
    }
    all_once(stage, "plain")
    code, rows, told = dlq(stage.group, stage.folder, *only, "--yes")
    # It reads on where the last one ended: whether any of the first twenty is behind that place is the letters' order.
    nothing = "none of them can be redriven" if rows else "there are no such dead letters"
    assert (code, nothing in told) == (0, True), told
    assert {row["action"] for row in rows} <= {"redriven before"}
    all_once(stage, "plain")


CUTS = {
    "copies produced": (Api.PRODUCE, Moment.DONE, Fate.PASS, 4),
    "offsets in the transaction": (Api.TXN_OFFSET_COMMIT, Moment.ANSWERED, Fate.DROP, 2),
    "commit not sent": (Api.END_TXN, Moment.ARRIVED, Fate.DROP, 2),
    "commit sent": (Api.END_TXN, Moment.FORWARDED, Fate.PASS, 2),
    "commit not acknowledged": (Api.END_TXN, Moment.ANSWERED, Fate.DROP, 2),
    "commit acknowledged": (Api.END_TXN, Moment.DONE, Fate.PASS, 2),
}


@pytest.mark.parametrize("cut", inner("commit sent", CUTS))
def test_a_redrive_that_was_killed_and_is_run_again_brings_each_back_once(stage: Stage, cut: str) -> None:
    api, moment, fate, nth = CUTS[cut]
    name = cut.replace(" ", "-")
    let_die(stage.group, COUNT, name)
    with stage.redrive(*RATE, "--header", f"kind={name}") as process:
        rule = stage.rule(api, moment, process.kill, nth, fate)
        assert rule.fired.wait(SECONDS)
        assert process.process.wait(SECONDS) == -9
    until(lambda: len(back(stage, name)) % 20 == 0, SECONDS, "no transaction is there in part")
    assert len(back(stage, name)) < COUNT, "it was in the midst of it"
    code, _, told = dlq(stage.group, stage.folder, "redrive", "--header", f"kind={name}", "--yes")
    assert code == 0, told
    all_once(stage, name)


@pytest.mark.long  # integration/kafka/test_late_ends.py in every run
def test_a_commit_that_comes_late_and_a_kill_behind_it_bring_no_letter_back_twice(stage: Stage) -> None:
    """The first commit is sent twice. Its first copy comes in the midst of the second transaction, and would commit its
    copies without their progress. Then the redrive is killed."""
    name, client = "late-commit", f"reconsume-{stage.group.names.redrive_group}"
    let_die(stage.group, COUNT, name)
    with stage.redrive(*RATE, "--header", f"kind={name}") as process:
        late = stage.proxied.proxy.add(Late(Api.END_TXN, client, cut=True))
        assert late.fired.wait(SECONDS)
        second = Rule(Api.ADD_OFFSETS_TO_TXN, client, Moment.ARRIVED, behind=late)
        stage.proxied.proxy.add(second)
        stage.rule(Api.TXN_OFFSET_COMMIT, Moment.ARRIVED, process.kill, 1, Fate.DROP)
        assert late.answered.wait(SECONDS)
        assert process.process.wait(SECONDS) == -9
    assert error_of(late) == INVALID_PRODUCER_EPOCH
    code, _, told = dlq(stage.group, stage.folder, "redrive", "--header", f"kind={name}", "--yes")
    assert code == 0, told
    all_once(stage, name)


@pytest.mark.long
def test_a_transaction_whose_end_nobody_tells_is_settled_by_asking_kafka(stage: Stage) -> None:
    """No answer to the commit ever comes: after 20 s another producer asks what became of it."""
    let_die(stage.group, 20, "unknown")
    with stage.redrive("--header", "kind=unknown", "--yes") as process:
        rule = stage.rule(Api.END_TXN, Moment.ANSWERED, lambda _request: None, 1, Fate.SILENCE)
        rule.times = 1_000
        assert rule.fired.wait(SECONDS)
        code, rows, told = process.end()
    assert (code, sum(row["letters"] for row in rows if row["action"] == "redriven")) == (0, 20), told
    all_once(stage, "unknown", 20)


@pytest.mark.long  # integration/dlq/test_producer.py fences one in every run
def test_of_two_redrives_at_once_the_later_wins_and_each_letter_comes_back_once(stage: Stage) -> None:
    only = ("--header", "kind=twice", "--yes")
    let_die(stage.group, COUNT, "twice")
    with stage.redrive("--rate", "2", *only) as first:
        assert stage.rule(Api.END_TXN, Moment.DONE, lambda _request: None, 1).fired.wait(SECONDS)
        code, _, told = dlq(stage.group, stage.folder, "redrive", "--reason", "bad-tax", *only)
        assert code == 0, told
        code, rows, told = first.end()
    assert code == 1
    assert "another `dlq` command" in told
    assert "begun and goes on, so this one stops" in told
    assert "Fatal" not in told  # the client says the same in words of its own
    assert sum(row["letters"] for row in rows if row["action"] == "redriven") < COUNT
    assert dlq(stage.group, stage.folder, "redrive", *only)[0] == 0
    all_once(stage, "twice")


def test_what_dies_while_it_is_redriven_waits_for_the_next_run(stage: Stage) -> None:
    """The letters are of records that die each time: each run brings each of them back once, and ends."""
    let_die(stage.group, COUNT, "never")
    with stage.redrive("--rate", "40", "--header", "kind=never", "--yes") as process:
        assert stage.rule(Api.END_TXN, Moment.DONE, lambda _request: None, 1).fired.wait(SECONDS)
        let_die(stage.group, 10, "never-meanwhile", kind="never")
        code, rows, told = process.end()
    assert (code, [row["letters"] for row in rows if row["action"] == "redriven"]) == (0, [20, 20, 20]), told
    until(lambda: len(back(stage, "never")) >= COUNT, SECONDS, "all have come back")
    found = back(stage, "never")
    assert ({redrives for _, redrives in found}, set(found.values()), len(found)) == ({1}, {1}, COUNT)


@pytest.mark.long
def test_what_came_back_too_often_is_quarantined(stage: Stage) -> None:
    let_die(stage.group, 1, "never-again", ("bad-loop",))
    loops = ("--reason", "bad-loop", "--max-redrives", "2")
    for redrives in (1, 2):
        code, rows, _ = dlq(stage.group, stage.folder, "redrive", *loops, "--yes")
        assert (code, [row["letters"] for row in rows if row["action"] == "redriven"]) == (0, [1])
        until(lambda: len(again(stage)) == redrives + 1, SECONDS, "it is dead again")  # noqa: B023 - called at once
    code, rows, _ = dlq(stage.group, stage.folder, "redrive", *loops, "--yes")
    assert [(row["action"], row["letters"]) for row in rows] == [("quarantined", 1)]
    code, rows, _ = dlq(stage.group, stage.folder, "list", "--all", *loops)
    assert [(row["redrives"], row["state"]) for row in rows] == [(2, "quarantined"), (1, "redriven"), (0, "redriven")]


def again(stage: Stage) -> list[bytes]:
    """The dead letters of the record that dies each time."""
    values = [row.value or b"" for row in dump(stage.group.bootstrap, stage.group.dlq)]
    return [value for value in values if value.startswith(b"never-again")]


@pytest.mark.long
def test_ctrl_c_ends_between_two_transactions(stage: Stage) -> None:
    only = ("--header", "kind=stopped", "--yes")
    let_die(stage.group, COUNT, "stopped")
    with stage.redrive("--rate", "20", *only) as process:
        assert stage.rule(Api.END_TXN, Moment.DONE, lambda _request: None, 1).fired.wait(SECONDS)
        process.interrupt()
        code, rows, told = process.end()
    redriven = sum(row["letters"] for row in rows if row["action"] == "redriven")
    assert (code, redriven % 10, 0 < redriven < COUNT) == (130, 0, True), told
    until(lambda: len(back(stage, "stopped")) >= redriven, SECONDS, "the last transaction can be seen")
    assert len(back(stage, "stopped")) == redriven
    assert dlq(stage.group, stage.folder, "redrive", *only)[0] == 0
    all_once(stage, "stopped")
