"""Faults of the job's processes: killed, stopped, and more than one of them."""

from __future__ import annotations

import os
import signal

from tests.soak_view.groups import Group
from tests.soak_view.schedule import Round
from tests.soak_view.world import World
from tests.support.sidecar.view_process import GONE_SECONDS, START_SECONDS


def all_killed(world: World, _group: Group, _turn: Round) -> None:
    """SIGKILL of the driver and of Java, as when a pod is killed."""
    world.note_counted()
    world.job.crash()
    world.job.start()


def driver_killed(world: World, _group: Group, _turn: Round) -> None:
    """SIGKILL of the driver alone: Java ends by itself, and the command line with it."""
    world.note_counted()
    world.job.driver().kill()
    assert world.job.process.wait(GONE_SECONDS) == 1
    world.supervise()


def java_killed(world: World, _group: Group, _turn: Round) -> None:
    """SIGKILL of Java alone: the driver says so and ends."""
    world.note_counted()
    os.kill(world.job.java().pid, signal.SIGKILL)
    assert world.job.process.wait(GONE_SECONDS) == 1
    world.supervise()


def stopped(world: World, group: Group, turn: Round) -> None:
    """SIGTERM, while events go on to come."""
    world.stop()
    group.live(turn.records)
    world.job.start()


def second(world: World, group: Group, turn: Round) -> None:
    """By mistake: it writes the same rows."""
    world.other.start()
    group.live(turn.records)
    world.other.until(lambda: "metrics at" in world.other.log(), START_SECONDS, "the second job has begun")
    assert world.other.stop() == 0
