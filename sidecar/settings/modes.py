"""Which settings have no effect in which mode of delivery: one table, from which users are warned.

A group has one mode. Five settings choose it: `deliver.mode`, `deliver.order`, `deliver.broadcast`,
`deliver.batch.max_size` and `retry.ordered_ladder`.

    mode            | chosen by                             | where the difference is made
    ----------------|---------------------------------------|--------------------------------------------------
    push            | the defaults                          |
    batch           | batch.max_size above 1                | assembly.build_batch_push
    order in place  | order, without a ladder               | Policy.in_place: decide reads no ladder and no times
    ordered ladder  | order, and retry.ordered_ladder       | Policy.queued: no level topics, another ladder
    pull            | mode: pull                            | no requests: assembly.build_delivery
    relay           | mode: relay                           | no main lane and no delivery: assembly.build_lane_specs
    spark           | mode: spark                           | no sidecar: Spark queries read the file (rules_from)
    broadcast       | broadcast: true                       | no group, no topics, no policy: failures are only counted

A setting without effect is a mistake, or will be taken for a promise, so each one is named:

- `checks.CONFLICTS` refuses those that were changed from their default where nobody can mean it (exit code 78).
- `IGNORED` has all others. `config check` and the start of a sidecar warn about each one that is written.

Both tables have the same form and are read in this order: `IGNORED` first, since its sentences are about what is
written, then `CONFLICTS` for a default that is written where a change would be refused. A setting counts as written if
file, variable or `--set` gives it, even with its default; null gives nothing, and a setting that chooses the mode says
only what the mode is.

`tests/unit/settings/test_mode_table.py` has one row for each setting, with the modes in which it has an effect, and
compares `decide` for two values of each setting of `retry` that has none. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.checks import CHANGED, CONFLICTS, DEFAULTS, NO_RETRIES, Conflict
from reconsume.sidecar.settings.faults import sentence
from reconsume.sidecar.settings.model import LEAVES, Settings, values_of
from reconsume.sidecar.settings.table import Fault, KeyPath, dotted


class Mode(StrEnum):
    """How the records of a group are delivered."""

    PUSH = "push"
    BATCH = "batch"
    IN_PLACE = "order in place"
    LADDER = "ordered ladder"
    PULL = "pull"
    RELAY = "relay"
    SPARK = "spark"
    BROADCAST = "broadcast"


CHOOSERS = (
    "deliver.mode",
    "deliver.order",
    "deliver.broadcast",
    "deliver.batch.max_size",
    "retry.ordered_ladder",
    "view.enabled",
    "ui.enabled",
)
"""Settings that choose the mode, or whether a part runs at all: their default says which, wherever it is written."""
OF_BATCHES = ("deliver.batch.max_bytes", "deliver.batch.on_failure", "deliver.batch.max_wait", "deliver.batch.mix")
OF_PULL = ("pull.min_invisible", "pull.max_leased", "pull.nack_max_times")
OF_ORDER = (
    "retry.ordered_interval",
    "retry.ordered_max_times",
    "retry.ordered_exhausted",
    "retry.ordered_max_waiting",
)
OF_RETRIES = (
    "retry.max_reconsume_times",
    "retry.ladder",
    "retry.rules",
    "retry.max_age",
    "retry.jitter",
    "retry.levels",
    "retry.share",
    "retry.max_deaths",
    "retry.unknown_topic",
    "retry.understand",
    "view.source",
    "view.folder",
)
RELAY = {"deliver.mode": "relay"}
PULL = {"deliver.mode": "pull"}
SPARK = {"deliver.mode": "spark"}
OF_SPARK = ("deliver.mode", "deliver.rate", "deliver.group_rate", "deliver.failure_text")
"""What a Spark query takes of `deliver`."""
OF_SIDECARS = (
    *(name for path in LEAVES if path[0] in ("deliver", "pull", "api") and (name := dotted(path)) not in OF_SPARK),
    *(f"retry.{name}" for name in ("share", "max_deaths", "postpone_limit", "nack_redelivery_delay")),
    *("start", "membership", "policy_mode", "drain_timeout", "lock_timeout", "tracing.enabled"),
)
"""What has an effect in a sidecar alone."""
BROADCAST = {"deliver.broadcast": True}
NO_BATCH = {"deliver.batch.max_size": 1}
BATCH = {"deliver.batch.max_size": CHANGED}
NO_ORDER = {"deliver.order": "none"}
IN_PLACE = {"deliver.order": CHANGED, "retry.ordered_ladder": None}
LADDER = {"retry.ordered_ladder": CHANGED}
NO_LEVELS = "has no effect on retries with deliver.order: nothing waits in level topics; leave it out"

IGNORED = (
    Conflict(OF_SIDECARS, SPARK, "has no effect in mode spark, where no sidecar runs; leave it out"),
    Conflict(
        ("start", "membership", "retry.share", "retry.max_deaths"),
        RELAY,
        "has no effect in relay mode, where the sidecar reads only retries and delivers nothing; leave it out",
    ),
    Conflict(
        ("deliver.failure_text", "deliver.allow_remote", "retry.postpone_limit", *OF_BATCHES),
        RELAY,
        "has no effect in relay mode, where the sidecar sends no request; leave it out",
    ),
    Conflict(
        ("deliver.failure_text", "deliver.allow_remote", "retry.postpone_limit", *OF_BATCHES),
        PULL,
        "has no effect in pull mode, where the sidecar sends no request; leave it out",
    ),
    Conflict(("start",), BROADCAST, "has no effect in broadcast mode, which begins at the newest record; leave it out"),
    Conflict(
        ("topic_prefix", "membership", "deliver.leave_after", "policy_mode"),
        BROADCAST,
        "has no effect in broadcast mode, which has no consumer group and no topics of its own; leave it out",
    ),
    Conflict(OF_RETRIES, BROADCAST, NO_RETRIES),
    Conflict(("deliver.envelope",), BATCH, "has no effect in batches, which are always envelopes; leave it out"),
    Conflict(
        ("retry.ladder", "retry.max_reconsume_times", "retry.jitter"),
        IN_PLACE,
        "has no effect with deliver.order: a failure is retried in place, every retry.ordered_interval, up to "
        "retry.ordered_max_times; set these, or retry.ordered_ladder",
    ),
    Conflict(("retry.ordered_exhausted",), IN_PLACE, "has no effect without retry.ordered_ladder; leave it out"),
    Conflict(("retry.ladder",), LADDER, "has no effect with retry.ordered_ladder, which takes its place; leave it out"),
    # A list has an effect: a level that the service asks for by its number counts in it.
    *(
        Conflict(("retry.levels",), {**mode, "retry.levels": levels}, NO_LEVELS)
        for mode in (IN_PLACE, LADDER)
        for levels in ("ladder", "table")
    ),
    Conflict(
        ("retry.ordered_interval", "retry.ordered_max_times"),
        LADDER,
        "has no effect with retry.ordered_ladder, by which failures wait instead of being retried in place; "
        "leave it out",
    ),
    Conflict(OF_ORDER, NO_ORDER, "has no effect while deliver.order is none; leave it out"),
    *(
        Conflict((*OF_PULL, "retry.nack_redelivery_delay"), mode, "has no effect outside pull mode; leave it out")
        for mode in ({"deliver.mode": "push"}, RELAY)
    ),
    Conflict(OF_BATCHES, NO_BATCH, "has no effect while deliver.batch.max_size is 1; leave it out"),
    # Not modes, but settings that another one switches off.
    Conflict(("deliver.health_timeout",), {"deliver.health_url": None}, "has no effect without deliver.health_url"),
    Conflict(("deliver.leave_after",), {"membership": "always"}, "has no effect with membership: always"),
    Conflict(("view.folder",), {"view.enabled": False}, "has no effect while view.enabled is false"),
)
"""Settings that are read nowhere, or change nothing, in a mode. The first entry that fits supplies the sentence."""


def ignored(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each setting that is written, in any of its sources, and has no effect in this mode.

    `settings` are valid: what is refused does not occur here.
    """
    values = {dotted(path): value for path, value in values_of(settings).items()}
    written = {dotted(path) for path in settings.configured & LEAVES.keys()}
    named = set[str]()
    for one in (*IGNORED, *CONFLICTS):
        for name in one.settings if one.is_met(values) else ():
            chooses = name in CHOOSERS and values[name] == DEFAULTS[name]
            if name in written and values[name] is not None and not chooses and name not in named:
                named.add(name)
                yield Fault(tuple(name.split(".")), one.text, values[name])


def expect_sidecar(settings: Settings) -> None:
    """Raise ConfigError if no sidecar runs in this mode."""
    if settings.deliver.mode == "spark":
        raise ConfigError(
            ["deliver.mode = spark: Spark queries consume the group, and no sidecar runs; start the job instead"]
        )


def ignored_settings(settings: Settings, origin: Callable[[KeyPath], str | None] = lambda path: None) -> list[str]:
    """Return a sentence for each setting that is written and has no effect. `origin`: where a value came from."""
    return [sentence(fault, origin(fault.path)) for fault in ignored(settings)]
