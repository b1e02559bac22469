"""The kind of a ladder: a name, a list of delays, or a formula."""

from __future__ import annotations

from collections.abc import Mapping

from reconsume.sidecar.settings.values import Checked, KeyPath, RefusedError, duration, many
from reconsume.topics.durations import render_duration
from reconsume.topics.levels import MOST_DELAYS, Exponential, LadderSpec

DELAY = duration("1s", "10d")
"""The delay of one level, or of one retry in the ladder (contract 2.2)."""
DELAYS = many(DELAY, "delays from 1s to 10d", least=1, most=MOST_DELAYS)
NAMED = ("rocketmq", "pulsar")
ALLOWED = "rocketmq, pulsar, a list of delays, or a formula like {initial: 5s, multiplier: 2, max: 2h}"

FORMULA_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "initial": {**DELAY.plain, "default": "5s"},
        "multiplier": {"type": "number", "minimum": 1, "maximum": 100, "default": 2},
        "max": {**DELAY.plain, "default": "2h"},
    },
    "additionalProperties": False,
}


def read_ladder(value: object) -> LadderSpec:
    """Return the ladder in the form of `topics.levels`. Raises ValueError if it has none of the allowed forms."""
    if isinstance(value, str) and value in NAMED:
        return value
    if isinstance(value, list | tuple):
        delays: tuple[int, ...] = DELAYS.take(value)
        return delays
    if isinstance(value, Mapping):
        return read_formula(value)
    raise ValueError(f"must be {ALLOWED}")


def read_formula(value: Mapping[object, object]) -> Exponential:
    """Return the formula of an exponential ladder. Raises RefusedError with every fault."""
    readers = {"initial": DELAY.take, "multiplier": read_multiplier, "max": DELAY.take}
    numbers: dict[str, int | float] = {}
    faults: list[tuple[KeyPath, str]] = []
    for name, number in value.items():
        try:
            numbers[str(name)] = readers[str(name)](number)
        except KeyError:
            faults.append(((str(name),), "unknown key; a formula has initial, multiplier and max"))
        except ValueError as fault:
            faults.append(((str(name),), str(fault)))
    if faults:
        raise RefusedError(faults)
    default = Exponential()
    return Exponential(
        initial=int(numbers.get("initial", default.initial)),
        multiplier=float(numbers.get("multiplier", default.multiplier)),
        max=int(numbers.get("max", default.max)),
    )


def read_multiplier(value: object) -> float:
    """Return a number from 1 to 100. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 100:
        raise ValueError("must be a number from 1 to 100")
    return float(value)


def write_ladder(ladder: LadderSpec) -> object:
    """Return the ladder as it is written in YAML."""
    match ladder:
        case str():
            return ladder
        case Exponential(initial=initial, multiplier=multiplier, max=longest):
            return {"initial": DELAY.give(initial), "multiplier": multiplier, "max": DELAY.give(longest)}
        case _:
            return [render_duration(delay) for delay in ladder]


LADDER = Checked(
    read_ladder,
    ALLOWED,
    {"anyOf": [{"enum": list(NAMED)}, dict(DELAYS.plain), FORMULA_SCHEMA], "examples": list(NAMED)},
    write=write_ladder,
)
