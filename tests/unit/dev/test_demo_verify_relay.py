"""The check of a group whose service reads Kafka itself: the same, but for what is forwarded and cannot be known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconsume.sidecar.dev.demo.verify import Report, Rules, verify
from reconsume.topics.events import State
from reconsume.topics.names import Names
from tests.support.proof.history import FLAKY, POISON, START, World, copy_row, event_row, life, sound
from tests.unit.dev.written_events import as_written


def check(world: World) -> Report:
    return verify(as_written(world.rows), world.deliveries, Names("billing"), ["orders"], (), Rules(relay=True))


def kinds(report: Report) -> set[tuple[str, str]]:
    return {(finding.kind, finding.id) for finding in report.findings}


def relayed() -> World:
    """A sound history of a relay: what is due goes to the ready topic, and no event says COMMIT."""
    world = sound()
    del world.rows[5]  # the event that says COMMIT
    world.rows.append(copy_row("billing-RETRY", 0, START + 1021, life(FLAKY, 1, START + 1010)))
    world.rows.append(copy_row("billing-RETRY", 1, START + 3027, life(POISON, 1, START + 3010)))
    world.rows.append(copy_row("billing-RETRY", 2, START + 6012, life(POISON, 2, START + 6000)))
    return world


def test_what_a_relay_forwards_is_part_of_the_way_of_one_retry() -> None:
    report = check(relayed())
    assert report.findings == ()
    assert report.retries == 3
    assert report.release.worst == 3.5, "counted from when it was forwarded"


def forward_before_the_level_is_over(world: World) -> None:
    world.rows[-1] = world.rows[-1]._replace(timestamp=START + 6009)


def forward_twice_with_another_due_time(world: World) -> None:
    world.rows.append(copy_row("billing-RETRY", 3, START + 6013, life(POISON, 2, START + 6001)))


def tell_what_a_relay_cannot_know(world: World) -> None:
    world.rows.append(event_row(9, State.COMMIT, life(FLAKY, 1, START + 1010)))


def tell_an_end_that_was_none(world: World) -> None:
    world.rows.append(event_row(9, State.DLQ, life(FLAKY, 1, START + 1010)))


@pytest.mark.parametrize(
    ("plant", "kind", "identity"),
    [
        (forward_before_the_level_is_over, "early", POISON),
        (forward_twice_with_another_due_time, "counted-twice", POISON),
        (tell_what_a_relay_cannot_know, "mistold", FLAKY),
        (tell_an_end_that_was_none, "no-copy", FLAKY),
    ],
)
def test_a_violation_of_a_relay_is_found(plant: Callable[[World], None], kind: str, identity: str) -> None:
    world = relayed()
    plant(world)
    assert (kind, identity) in kinds(check(world))
