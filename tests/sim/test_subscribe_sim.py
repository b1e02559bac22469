"""A group's topics change while a pod has lost its membership: the client would end its process at the change."""

from functools import partial

from tests.sim.checker import check
from tests.sim.plan import Fault, Plan
from tests.sim.samples import waits
from tests.sim.world import World

LOST_AT, LASTS = 1_000, 2_000


def test_levels_that_are_added_while_a_membership_is_lost_are_read_once_it_is_back() -> None:
    """One more of them every 20 ms, so that some come between the loss and the next membership, whatever the seed."""
    for seed in range(10):
        world = World(Plan(seed=seed, faults=(Fault("lose", LOST_AT, LASTS, 0),)))
        host = world.processes[0].hosts["billing-RETRY"]
        levels = waits(world.policies[0])
        for number in range(200):
            levels = {**levels, f"billing-RETRY-orders-{number}h": 3_600_000}
            world.later(LOST_AT + 20 * number, partial(host.widen, levels))
        check(world.run())
        assert host.topics == levels.keys()
