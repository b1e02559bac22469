"""Faults of the service: away, hanging, refusing everything, asking for time, slow."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.soak.cluster import NotSoError
from tests.soak.schedule import Step
from tests.soak.service import ILL, well
from tests.soak.world import Fault, World


@contextmanager
def away(world: World, step: Step) -> Iterator[str]:
    """As a process that is killed: connections are refused, and those that stand are cut."""
    world.service.down()
    try:
        with socket.socket() as probe:
            code = probe.connect_ex(("127.0.0.1", world.service.port))
        if code == 0:
            raise NotSoError("the service takes connections while it is down")
        yield f"a connection is refused: {code}"
    finally:
        world.service.up()


@contextmanager
def ill(world: World, step: Step) -> Iterator[str]:
    """Another script; how many deliveries it has seen is written down at the end."""
    world.service.script = ILL[step.kind]
    before = world.ledger.seen
    try:
        yield f"the service now follows {step.kind}"
    finally:
        world.service.script = well
        world.confirm(step, f"{world.ledger.seen - before} deliveries were made meanwhile")


def heal_all(world: World) -> None:
    """It is well."""
    world.service.script = well


FAULTS: dict[str, Fault] = {"service-away": away, **dict.fromkeys(ILL, ill)}
