"""What must hold between two calls of a lane is checked; each kind of damage is seen; the tables of states are true."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from inspect import getdoc
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconsume.sidecar.core import key_lines, ledger, ownership, partition, suspicion
from reconsume.sidecar.core.append_times import Note
from reconsume.sidecar.core.invariant import BrokenInvariantError
from reconsume.sidecar.core.lane import Lane
from reconsume.sidecar.core.outcome import Failed, Throttled
from reconsume.sidecar.core.owned_queue import Reach
from reconsume.sidecar.core.pace.pace import State
from reconsume.sidecar.core.partition import DELAYED, OUT, READY, SETTLED, Entry, PartitionState, Pause, Where
from reconsume.sidecar.core.reasons import NotFetched
from reconsume.sidecar.core.record import NEVER, Partition
from tests.sim.rig import Rig
from tests.sim.samples import ORDERS, record
from tests.sim.suspect_rigs import OTHER, died, taken_up

CORE = Path(__file__).parents[3] / "sidecar" / "core"


def at_work() -> Rig:
    """A lane with a suspect partition, one of which a copy is refused, and records that are out, ready and delayed."""
    rig = taken_up(died(1), *range(9))
    rig.settle()
    rig.assign(OTHER)
    rig.take_offsets(range(3), OTHER)
    rig.settle()
    rig.answer(Failed("http-500"))
    rig.answer(Throttled(60_000))
    rig.run(50)
    rig.conclude(refused=[(rig.batches[0].entries[0], "record")])
    rig.lane.check()
    return rig


def entry_at(rig: Rig, where: Where, source: Partition = ORDERS) -> Entry:
    """The first entry of a partition in this place."""
    return next(entry for entry in rig.part(source).offsets.entries.values() if entry.where is where)


def out(rig: Rig) -> None:
    rig.part().offsets.counts[OUT] -= 1


def counted_too_often(rig: Rig) -> None:
    rig.part(OTHER).offsets.counts[SETTLED] += 1


def elsewhere(rig: Rig) -> None:
    entry_at(rig, SETTLED).where = OUT


def without_its_record(rig: Rig) -> None:
    entry_at(rig, OUT).record = None


def under_another_offset(rig: Rig) -> None:
    entry_at(rig, OUT).offset += 1


def begun_in_another_order(rig: Rig) -> None:
    entries = rig.part(OTHER).offsets.entries
    entries[min(entries)] = entries.pop(min(entries))


def beyond_what_has_begun(rig: Rig) -> None:
    rig.part().offsets.top += 1_000


def held_where_it_does_not_wait(rig: Rig) -> None:
    entry_at(rig, OUT).hold = "h"


def held_by_nobody(rig: Rig) -> None:
    entry = entry_at(rig, DELAYED)
    rig.lane.machines.waiting.end_delay(entry)
    rig.lane.machines.fetching.drop_from_memory(rig.part(), entry)
    entry.hold = "h"


def tried_by_nobody(rig: Rig) -> None:
    rig.part().offsets.tried += 1


def weight(rig: Rig) -> None:
    rig.lane.room.load -= rig.part().throughput.load - 1
    rig.part().throughput.load = 1


def sum_of_loads(rig: Rig) -> None:
    rig.lane.room.load += 1


def refused_bytes(rig: Rig) -> None:
    rig.lane.room._refused_together += 1


def half_full_and_looked_at_by_nobody(rig: Rig) -> None:
    rig.lane.room._own = 1


def blocked_and_fetched(rig: Rig) -> None:
    rig.part().blocked = "refused"


def paused_until_nobody_looks(rig: Rig) -> None:
    rig.part().paused = Pause(3, 5_000, NotFetched.SHARE)


def paused_behind_what_is_to_be_read_again(rig: Rig) -> None:
    entry = entry_at(rig, DELAYED)
    rig.lane.machines.waiting.end_delay(entry)
    rig.lane.machines.fetching.drop_from_memory(rig.part(), entry)
    rig.lane.machines.fetching.pause(rig.part(), 900, rig.now.steady_ms, NotFetched.SHARE)


def last_time_of_a_main_topic(rig: Rig) -> None:
    rig.part().commit.last_at_ms = 7


def lost_record(rig: Rig) -> None:
    rig.lane.machines.waiting.let_try(rig.part(OTHER), first=False)
    entry = entry_at(rig, READY, OTHER)
    assert entry.record is not None
    rig.lane.ready.pick(entry.record)


def comes_at_no_time(rig: Rig) -> None:
    rig.lane.machines.agenda.set_time(entry_at(rig, DELAYED), NEVER)


def twice(rig: Rig) -> None:
    rig.lane.ready.append(rig.sent[0].record)


def not_begun(rig: Rig) -> None:
    rig.lane.ready.append(record(999))


def of_no_partition(rig: Rig) -> None:
    rig.lane.ready.append(replace(record(0), epoch=7))


def late_commit(rig: Rig) -> None:
    rig.part().commit.by_ms, rig.lane.machines.commits._by_ms = 5, NEVER


def settled_and_in_no_transaction(rig: Rig) -> None:
    rig.lane.machines.outbox.refused.clear()


def refused_elsewhere(rig: Rig) -> None:
    key, held = rig.lane.machines.outbox.refused.popitem()
    rig.lane.machines.outbox.refused[key[0], key[1] + 1] = held


def tried_after_an_hour(rig: Rig) -> None:
    next(iter(rig.lane.machines.outbox.refused.values())).backoff.wait_ms = 3_600_000


def gathered(rig: Rig) -> None:
    rig.lane._accepted.append(record(0))


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


def notes_turned(rig: Rig) -> None:
    rig.part().append_times._notes.extend([Note(9, 0, 0), Note(4, 1, 1)])


def in_doubt_for_nothing(rig: Rig) -> None:
    rig.conclude()
    rig.lane.machines.doubt._is_raised = True


def woken_too_late(rig: Rig) -> None:
    rig.lane.machines.agenda._woken_at_ms = NEVER


def marked_among_few(rig: Rig) -> None:
    assert rig.part().suspicion is not None
    rig.part().suspicion.mark = 3  # type: ignore[union-attr]


def file_without_suspects(rig: Rig) -> None:
    rig.gate.single_file.join(OTHER)


def turn_outside_the_file(rig: Rig) -> None:
    rig.gate.single_file.turn = OTHER


def name(rig: Rig) -> None:
    rig.lane.machines.partitions[OTHER] = rig.lane.machines.partitions.pop(ORDERS)


DAMAGES: list[Callable[[Rig], None]] = [
    out,
    counted_too_often,
    elsewhere,
    without_its_record,
    under_another_offset,
    begun_in_another_order,
    beyond_what_has_begun,
    held_where_it_does_not_wait,
    held_by_nobody,
    tried_by_nobody,
    weight,
    sum_of_loads,
    refused_bytes,
    half_full_and_looked_at_by_nobody,
    blocked_and_fetched,
    paused_until_nobody_looks,
    paused_behind_what_is_to_be_read_again,
    last_time_of_a_main_topic,
    lost_record,
    comes_at_no_time,
    twice,
    not_begun,
    of_no_partition,
    late_commit,
    settled_and_in_no_transaction,
    refused_elsewhere,
    tried_after_an_hour,
    gathered,
    still_gathering,
    places,
    over_the_limit,
    outage_that_sends,
    end_without_end,
    notes_turned,
    in_doubt_for_nothing,
    woken_too_late,
    marked_among_few,
    file_without_suspects,
    turn_outside_the_file,
    name,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__ for damage in DAMAGES])
def test_each_kind_of_damage_is_seen(damage: Callable[[Rig], None]) -> None:
    rig = at_work()
    damage(rig)
    with pytest.raises(BrokenInvariantError):
        rig.lane.check()


# --- who has one -----------------------------------------------------------------------------------------------------


OWNED = {"offset_ranges.py: OffsetRanges", "suspicion.py: OutRecords", "suspicion.py: Suspects"}
"""Their owners' checks look at them."""


def test_whoever_states_an_invariant_checks_it_and_whoever_checks_one_states_it() -> None:
    """A lane itself checks what its machines have in common; each of them states its own."""
    stated, checked = set[str](), set[str]()
    for path in sorted([*CORE.glob("*.py"), *CORE.glob("pace/*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef) or node.name == "Lane":
                continue
            name = f"{path.name}: {node.name}"
            if "nvariant" in (ast.get_docstring(node) or ""):
                stated.add(name)
            if "check" in {item.name for item in node.body if isinstance(item, ast.FunctionDef)}:
                checked.add(name)
    assert (stated - checked, checked - stated) == (OWNED, {"outbox.py: Backoff"})
    assert len(checked) > 15


# --- the tables of states in docstrings name the states that the code has, and each can be left ----------------------


OWNERSHIP = {"assigned", "paused", "blocked", "closing", "gone"}
STAGES = {"none", *(stage.name.lower() for stage in suspicion.Stage)}
PHASES = {"none", *(phase.value for phase in key_lines.Phase)}
REACHES = {reach.value.replace("_", " ") for reach in Reach}


def rows(text: str | None) -> list[tuple[str, str]]:
    """State, and the states that it leaves to."""
    found = [line.split("|") for line in (text or "").splitlines() if line.count("|") == 2]
    return [(cells[0].strip(), cells[2].split(":")[0].strip()) for cells in found[2:]]


@pytest.mark.parametrize(
    ("text", "states", "ends"),
    [
        (ownership.__doc__, OWNERSHIP, set[str]()),
        (suspicion.__doc__, STAGES, set[str]()),
        (ledger.__doc__, PHASES, set[str]()),
        (getdoc(Reach), REACHES, {"absent", "caught up"}),
    ],
    ids=["ownership", "suspicion", "ledger", "reach"],
)
def test_a_table_has_every_state_and_leads_nowhere_else(text: str | None, states: set[str], ends: set[str]) -> None:
    found = rows(text)
    assert {state for state, _ in found} == states
    targets = {target.strip() for _, some in found for target in some.split(",")}
    assert targets - {""} <= states
    assert {state for state, target in found if target} == states - ends


def test_the_places_of_an_entry_are_those_of_the_list() -> None:
    assert re.findall(r"^    ([A-Z_]+)  +\w", partition.__doc__ or "", re.MULTILINE) == [where.name for where in Where]


def test_the_states_of_a_partition_are_fields_of_it() -> None:
    """`assigned` and `gone` are told by whether there is a `PartitionState` at all."""
    assert set(PartitionState.__slots__) >= OWNERSHIP - {"assigned", "gone"}


def test_the_times_and_the_functions_that_a_table_names_are_there() -> None:
    named = set(re.findall(r"`([A-Z_]+|[a-z_]+_of|after_time)`", suspicion.__doc__ or ""))
    assert named == {"QUIET_MS", "IDLE_MS", "suspicion_of", "after_time"}
    assert named <= vars(suspicion).keys() | vars(suspicion.Suspicion).keys()


# --- who writes ------------------------------------------------------------------------------------------------------


@cache
def written(path: Path) -> set[str]:
    """The attributes that a module writes, and the classes of which it makes objects, with `()` behind them."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [one for target in node.targets for one in getattr(target, "elts", [target])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"{node.func.id}()")
        found |= {target.attr for target in targets if isinstance(target, ast.Attribute)}
    return found


WRITERS = {
    "where": {"partition.py"},
    "Entry()": {"partition.py"},
    "Pause()": {"fetching.py"},
    "paused": {"fetching.py", "partition.py"},
    "load": {"partition.py", "room.py"},
}


@pytest.mark.parametrize("what", WRITERS)
def test_each_fact_of_a_partition_has_one_writer(what: str) -> None:
    assert {path.name for path in CORE.rglob("*.py") if what in written(path)} == WRITERS[what]


OPEN = {"counters", "queues", "shown", "room", "partitions"}
"""What a lane has beside its methods: its counts, its queues, what it shows, its memory, its partitions."""


def parts_of_lanes(path: Path) -> set[str]:
    """What a module names of a lane, without what is open: `lane.x`, `self.lane.x` or `runner.lane.x`."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Attribute) or node.attr in OPEN or callable(getattr(Lane, node.attr, None)):
            continue
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        if owner in ("lane", "_lane"):
            found.add(f"{path.name}: {ast.unparse(node)}")
    return found


def test_nothing_outside_a_lane_names_its_machines() -> None:
    """The dispatcher has a port of its own, `LaneQueue`."""
    around = [CORE, *(CORE.parent / part for part in ("runtime", "observability", "delivery"))]
    inside = {CORE / "pace" / "dispatcher.py", CORE / "lane.py"}
    paths = [path for part in around for path in part.rglob("*.py") if path not in inside]
    assert set().union(*map(parts_of_lanes, paths)) == set()
