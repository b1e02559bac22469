"""What must hold between two calls of a lane is checked: each breach is seen, and all objects with state do."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core.invariant import BrokenInvariantError
from reconsume.sidecar.core.lane.append_times import Note
from reconsume.sidecar.core.lane.partition import Because, Pause
from reconsume.sidecar.core.lane.suspicion import Stage, Suspicion
from reconsume.sidecar.core.outcome import Failed
from reconsume.sidecar.core.pace.pace import State
from reconsume.sidecar.core.record import NEVER
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record
from tests.sim.suspect_rigs import OTHER, died, taken_up

CORE = Path(__file__).parents[4] / "sidecar" / "core"


def at_work() -> Rig:
    """A lane with a suspect partition, one of which a copy is refused, and records that are out, ready and delayed."""
    rig = taken_up(died(1), *range(9))
    rig.settle()
    rig.assign(OTHER)
    rig.take_offsets(range(3), OTHER)
    rig.settle()
    rig.answer(Failed("http-500"))
    rig.run(50)
    rig.conclude(refused=[(rig.batches[0].entries[0], "record")])
    rig.lane.check()
    return rig


def out(rig: Rig) -> None:
    rig.part().in_flight -= 1


def negative(rig: Rig) -> None:
    rig.part(OTHER).unsettled = -1


def weight(rig: Rig) -> None:
    rig.lane.memory.load -= rig.part().load - 1
    rig.part().load = 1


def sum_of_loads(rig: Rig) -> None:
    rig.lane.memory.load += 1


def refused_bytes(rig: Rig) -> None:
    rig.lane.memory._refused_together += 1


def blocked_and_fetched(rig: Rig) -> None:
    rig.part().blocked = "refused"


def paused_until_nobody_looks(rig: Rig) -> None:
    rig.part().pause(Pause(9, 5_000, Because.SHARED))


def looked_at_too_late(rig: Rig) -> None:
    rig.lane.paused.pause(rig.part(OTHER), 3, 3_600_000, Because.NOT_DUE)
    paused_until_nobody_looks(rig)


def lost_record(rig: Rig) -> None:
    ready = rig.lane.ready
    assert ready.take_back(ORDERS) or ready.take_back(OTHER) or rig.lane._waiting._withheld.pop(ORDERS)


def twice(rig: Rig) -> None:
    rig.lane._waiting.delay(rig.sent[0].record, 50)
    rig.part(rig.sent[0].record.source).in_flight -= 1
    rig.lane.ready.append(rig.sent[0].record)


def not_begun(rig: Rig) -> None:
    rig.lane.ready.append(record(999))


def of_no_partition(rig: Rig) -> None:
    rig.lane.ready.append(replace(record(0), epoch=7))


def late_commit(rig: Rig) -> None:
    rig.part().commit_by_ms, rig.lane.commits._by_ms = 5, NEVER


def refused_elsewhere(rig: Rig) -> None:
    key, held = rig.lane.outbox.refused.popitem()
    rig.lane.outbox.refused[key[0], key[1] + 1] = held


def gathered(rig: Rig) -> None:
    rig.lane._bulk_answers.add(record(0))


def still_gathering(rig: Rig) -> None:
    rig.gate.gathering = True


def places(rig: Rig) -> None:
    rig.gate.in_flight = 0


def over_the_limit(rig: Rig) -> None:
    rig.gate.pace.limit = rig.gate.pace.full + 1


def outage_that_sends(rig: Rig) -> None:
    rig.gate.pace.state = State.OUTAGE


def end_without_end(rig: Rig) -> None:
    rig.gate.pace.limit, rig.gate.pace.probe_at_ms = 0, NEVER


def done_first(rig: Rig) -> None:
    tracker = rig.part().tracker
    tracker._done.add(tracker.first)


def dropped_unbegun(rig: Rig) -> None:
    rig.part().tracker.dropped.add(999)


def notes_turned(rig: Rig) -> None:
    rig.part().append_times._notes.extend([Note(9, 0, 0), Note(4, 1, 1)])


def marked_among_few(rig: Rig) -> None:
    rig.part().suspicion = Suspicion(1, Stage.FEW, mark=3)


def file_without_suspects(rig: Rig) -> None:
    rig.gate.single_file.join(OTHER)


def turn_outside_the_file(rig: Rig) -> None:
    rig.gate.single_file.turn = OTHER


def name(rig: Rig) -> None:
    rig.lane.ownership.partitions[OTHER] = rig.lane.ownership.partitions.pop(ORDERS)


BREACHES: list[Callable[[Rig], None]] = [
    out,
    negative,
    weight,
    sum_of_loads,
    refused_bytes,
    blocked_and_fetched,
    paused_until_nobody_looks,
    looked_at_too_late,
    lost_record,
    twice,
    not_begun,
    of_no_partition,
    late_commit,
    refused_elsewhere,
    gathered,
    still_gathering,
    places,
    over_the_limit,
    outage_that_sends,
    end_without_end,
    done_first,
    dropped_unbegun,
    notes_turned,
    marked_among_few,
    file_without_suspects,
    turn_outside_the_file,
    name,
]


@pytest.mark.parametrize("breach", BREACHES, ids=[breach.__name__ for breach in BREACHES])
def test_a_breach_is_seen(breach: Callable[[Rig], None]) -> None:
    rig = at_work()
    breach(rig)
    with pytest.raises(BrokenInvariantError):
        rig.lane.check()


# --- who has one -----------------------------------------------------------------------------------------------------

STATELESS = {"BlockedPartitions", "CommitResults", "Decisions", "RelayBulk", "ShownLane"} | {
    *("LaneTimer", "Flow", "TopicFlows", "OpenSettlements")
}
"""Classes that only act on others' state, and four whose state nothing else depends on: a wake-up that comes too early
does no harm, neither does another turn, the flows check their flows, and people may decide what they like."""


def test_every_object_with_state_says_what_holds_and_checks_it() -> None:
    """Frozen values, enums, protocols and errors have nothing to check."""
    missing = []
    for path in sorted([*CORE.glob("lane/*.py"), *CORE.glob("pace/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or node.bases or node.name in STATELESS:
                continue
            names = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            frozen = any("dataclass" in ast.unparse(one) and "check" not in names for one in node.decorator_list)
            if not frozen and ("check" not in names or "nvariant" not in (ast.get_docstring(node) or "")):
                missing.append(f"{path.name}: {node.name}")
    assert missing == ["lane.py: Lane"], "what a lane claims is in invariants.py"
