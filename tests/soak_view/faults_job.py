"""Faults of the job's processes: killed, stopped, without its folder, and more than one of them."""

from __future__ import annotations

import os
import shutil
import signal

from tests.soak_view.groups import Group
from tests.soak_view.schedule import Round
from tests.soak_view.world import World
from tests.support.sidecar.view_process import GONE_SECONDS, START_SECONDS

TAKEN = "is in use by another job"


def all_killed(world: World, _group: Group, _turn: Round) -> None:
    """SIGKILL of the driver and of Java, as when a pod is killed."""
    world.note_counted()
    world.job.crash()
    world.job.start()


def driver_killed(world: World, _group: Group, _turn: Round) -> None:
    """SIGKILL of the driver alone: Java ends by itself, and the command line with it."""
    world.note_counted()
    world.job.driver().kill()
    assert world.job.process.wait(GONE_SECONDS) != 0
    world.job.await_gone()
    world.job.start()


def java_killed(world: World, _group: Group, _turn: Round) -> None:
    """SIGKILL of Java alone: the driver starts itself anew."""
    world.note_counted()
    os.kill(world.job.java().pid, signal.SIGKILL)


def stopped(world: World, group: Group, turn: Round) -> None:
    """SIGTERM, while events go on to come."""
    world.stop()
    group.live(turn.records)
    world.job.start()


def without_checkpoint(world: World, group: Group, turn: Round) -> None:
    """Its folder is lost while it is stopped."""
    world.stop()
    shutil.rmtree(world.checkpoint)
    group.live(turn.records)
    world.job.start()


def second(world: World, group: Group, turn: Round) -> None:
    """By mistake, with a checkpoint of its own: it writes the same rows."""
    world.other.start()
    group.live(turn.records)
    world.other.until(lambda: "metrics at" in world.other.log(), START_SECONDS, "the second job has begun")
    assert world.other.stop() == 0


def second_on_the_checkpoint(world: World, group: Group, turn: Round) -> None:
    """By mistake, on the same checkpoint: it must refuse, and leave it as it is."""
    world.intruder.start()
    group.live(turn.records)
    assert world.intruder.process.wait(START_SECONDS) == 1
    assert TAKEN in world.intruder.log()
