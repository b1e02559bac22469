"""The section `retry`, with the kind of values that only it has: the table of levels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from reconsume.sidecar.settings.sections.ladder import DELAYS, LADDER
from reconsume.sidecar.settings.sections.retry_rule import AGE, TIMES, Rule
from reconsume.sidecar.settings.values import Checked, Section, duration, many, percent, text, whole
from reconsume.topics.durations import parse_duration as ms
from reconsume.topics.durations import render_duration
from reconsume.topics.foreign_headers import SYSTEMS
from reconsume.topics.levels import LadderSpec, LevelsSpec
from reconsume.topics.retry_rules import MOST_RULES

BY_NAME = ("ladder", "table")
LEVELS_ALLOWED = "ladder, table, or a list of delays"


def read_levels(value: object) -> LevelsSpec:
    """Return the levels in the form of `topics.levels`. Raises ValueError if they have none of the allowed forms."""
    if isinstance(value, str) and value in BY_NAME:
        return value
    if isinstance(value, list | tuple):
        delays: tuple[int, ...] = DELAYS.take(value)
        return delays
    raise ValueError(f"must be {LEVELS_ALLOWED}")


def write_levels(levels: LevelsSpec) -> object:
    """Return the levels as they are written in YAML."""
    return [render_duration(delay) for delay in levels] if isinstance(levels, tuple) else levels


LEVELS = Checked(
    read_levels,
    LEVELS_ALLOWED,
    {"anyOf": [{"enum": list(BY_NAME)}, dict(DELAYS.plain)], "examples": list(BY_NAME)},
    write=write_levels,
)


FOREIGN = text(" or ".join(SYSTEMS), "|".join(SYSTEMS))


class Retry(Section):
    """`retry`: how often and when a failed record is tried again."""

    max_reconsume_times: Annotated[int, TIMES] = Field(
        default=16,
        description=(
            "Retries, not deliveries: 3 means at most four deliveries, and 0 sends the first failure to the DLQ."
        ),
    )
    ladder: Annotated[LadderSpec, LADDER] = Field(
        default="rocketmq",
        description=(
            "What retry n waits: `rocketmq` (10s to 2h, 4h45m40s in all), `pulsar` (1s to 30m), a list of "
            "delays, or a formula. Past its end every retry waits the last delay."
        ),
    )
    rules: tuple[Rule, ...] = Field(
        default=(),
        strict=False,
        max_length=MOST_RULES,
        description=(
            "What applies to some failures instead: {name, topics, reasons, ladder, max_reconsume_times, max_age, "
            "dead_letter}. `topics` and `reasons` are names or globs (`http-5*`), and none means all; the first rule "
            "that matches decides, and what it leaves out is the group's. `dead_letter: true` ends the record at once. "
            "A delay that the service asks for goes before a ladder."
        ),
    )
    max_age: Annotated[int | None, AGE.or_null()] = Field(
        default=None,
        description=(
            "The age, by its own timestamp, after which a record is not due again: a failure whose next retry would "
            "come later puts it into the DLQ as `expired`. Looked at only when a delivery fails. null is without limit."
        ),
    )
    jitter: Annotated[int, percent(0, 50)] = Field(
        default=0,
        description=(
            "By how much the wait of a retry is made longer at most, so that records that failed together do not come "
            "back together. Never shorter. What lies beyond the delay of its level waits at the sidecar."
        ),
    )
    levels: Annotated[LevelsSpec, LEVELS.or_null()] = Field(
        default=None,
        description=(
            "The level topics: `ladder` (one for each delay of the ladder, none with `deliver.order`), `table` (those "
            "of all 18 levels, 1s to 2h, as well), or a rising list of delays. Other delays are made of hops through "
            "these, at most one second late. A numbered level counts in a list that is given, otherwise among the 18. "
            "A wait below the shortest level is made in memory, or in that level when such waits take a quarter of "
            "`deliver.buffer_memory`. null: 10s, 30s, 1m, 5m, 30m and 2h for the ladder `rocketmq`; for any other, its "
            "delays, or the eight of them with the fewest hops; none with `deliver.order`."
        ),
    )
    ordered_interval: Annotated[int, duration("10ms", "30s")] = Field(
        default=ms("1s"),
        description="The wait between two tries in place, in ordered mode; the ladder is not used there.",
    )
    ordered_max_times: Annotated[int | None, TIMES.or_null()] = Field(
        default=None,
        description=(
            "Tries in place before an ordered record goes to the DLQ. null is without limit: order then means "
            "that everything waits for the failing record."
        ),
    )
    ordered_ladder: Annotated[LadderSpec | None, LADDER.or_null()] = Field(
        default=None,
        description=(
            "With `deliver.order`: what retry n of a failing record waits, in the forms of `retry.ladder`. The record "
            "waits in a queue topic, and later ones of its key behind it, for hours if need be; all other keys go on, "
            "and `max_reconsume_times` applies. null: it is tried in place, every `ordered_interval`."
        ),
    )
    ordered_exhausted: Literal["dead-letter", "park"] = Field(
        default="dead-letter",
        description=(
            "What happens to an ordered record whose retries by `ordered_ladder` are used up. `dead-letter`: it goes "
            "to the DLQ, and the next one of its key is delivered. `park`: it stays in its queue without a due time, "
            "and its key waits, until a person decides (`reconsume settle`). Back at `dead-letter`, what is parked "
            "goes to the DLQ."
        ),
    )
    ordered_max_waiting: Annotated[int, whole(100, 1_000_000)] = Field(
        default=20_000,
        description=(
            "How many records of one partition may wait by `ordered_ladder`, with those behind them. Beyond that, or "
            "16384 offsets of its queue, the partition is paused until some are done."
        ),
    )
    nack_redelivery_delay: Annotated[int, duration("1s", "10d")] = Field(
        default=ms("1m"),
        description="When a record that the service nacked is delivered again; checked every third of it.",
    )
    postpone_limit: Annotated[int, duration("1s", "10d")] = Field(
        default=ms("1h"),
        description=(
            "For how long a service may postpone a record (`postpone`), from the first time on, before that counts as "
            "a failure with the reason `postponed`. A wait below 10s is counted anew by a new owner."
        ),
    )
    share: Annotated[int, percent(1, 99)] = Field(
        default=50,
        description=(
            "The part of the deliveries and of the places in flight that retries and redrives may take while fresh "
            "records wait that could go too. What one side does not use, the other takes. Not in relay mode or "
            "broadcast, where the sidecar delivers only one kind."
        ),
    )
    max_deaths: Annotated[int, whole(1, 1000)] = Field(
        default=3,
        description=(
            "How often a record may be out while the service dies before it is put into the DLQ as the suspect, "
            "so that it does not kill every instance in turn."
        ),
    )
    unknown_topic: Annotated[int, duration("1s", "10d")] = Field(
        default=ms("1h"),
        description=(
            "For how long after its due time a retry of a topic that this instance does not consume is passed on to "
            "instances that do, before it goes to the DLQ as `unknown-topic`. Longer than a roll-out takes."
        ),
    )
    understand: Annotated[tuple[str, ...], many(FOREIGN, ", ".join(SYSTEMS), most=len(SYSTEMS))] = Field(
        default=(),
        description=(
            "Systems whose retry headers count on the main topics, while their retry topics are drained as such: "
            "retries made there are not made again. None by default: whoever writes to a main topic writes them."
        ),
    )

    @field_validator("rules")
    @classmethod
    def names_differ(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        """Refuse two rules of one name: a rule is changed by its name."""
        names = [rule.name for rule in rules]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two rules are called {twice}")
        return rules
