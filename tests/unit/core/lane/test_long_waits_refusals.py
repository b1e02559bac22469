"""Kafka refuses what is to wait in a queue: no attempt is lost, and what can go on does."""

from __future__ import annotations

import pytest

from tests.sim.ladder_rig import QUEUE, WAITS, LadderRig


def rig_of(*keys: bytes) -> LadderRig:
    """A lane that was handed records with these keys. Two may be out."""
    rig = LadderRig(concurrency=2)
    rig.take_over()
    rig.settle()
    rig.arrive(*keys)
    return rig


def refused(rig: LadderRig, about: str) -> None:
    """Fail the record at 0 of three that are in memory, of which one is out; Kafka refuses its copy."""
    for offset in (0, 1, 2):
        rig.fail(offset)
    rig.flow()
    rig.flow(WAITS[0])
    assert rig.out() == [0], "each flow leaves a place for others"
    rig.fail(0)
    rig.run(20)
    rig.conclude(refused=[(rig.batches[0].entries[0], about)])


def test_a_queue_topic_that_takes_no_copies_is_not_delivered_from_until_it_does() -> None:
    """What waits in memory is let go, and read again: over weeks it would take the room of others."""
    rig = rig_of(b"a", b"b", b"c")
    refused(rig, "topic")
    assert (rig.part(QUEUE).blocked, rig.out(), rig.reader.wanted) == ("t: refused", [1], [])
    rig.take_it(1)
    rig.run(20)
    rig.arrive(b"a", b"d")
    assert rig.out() == [4], "the main partition goes on"
    rig.flow(500)
    assert (rig.part(QUEUE).blocked, rig.out()) == ("", [4, 2])
    rig.take_it(2)
    rig.flow(WAITS[1])
    assert rig.take_it(0).times == 2


@pytest.mark.parametrize("first", [True, False], ids=["while-it-is-refused", "once-it-is-taken"])
def test_what_was_let_go_is_read_again_whenever_something_else_ends(first: bool) -> None:
    """A head stood for ever, with its key, where nothing had its queue looked at before it went on."""
    rig = rig_of(b"a", b"b", b"c")
    refused(rig, "topic")
    if first:
        rig.take_it(1)
    rig.flow(500)
    if not first:
        rig.take_it(1)
        rig.flow()
    assert (rig.part(QUEUE).blocked, rig.out()) == ("", [2])
    rig.take_it(2)
    rig.flow(WAITS[1])
    rig.take_it(0)
    rig.flow()
    assert rig.queue().next == rig.end


def test_a_copy_that_is_too_large_holds_its_key_alone() -> None:
    rig = rig_of(b"a", b"b", b"c")
    refused(rig, "record")
    rig.arrive(b"a")
    assert (rig.part(QUEUE).blocked, rig.out()) == ("", [1])
    rig.take_it(1)
    assert rig.out() == [2]
    rig.take_it(2)
    rig.flow(500)
    rig.flow(WAITS[1])
    assert rig.take_it(0).times == 2
