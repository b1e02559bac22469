"""What `topics plan` and `check` say beside their rows: what the topics cost, and which levels are unusual. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Sequence

from reconsume.sidecar.cli.terminal.output import Row
from reconsume.sidecar.cli.topics.plan import Step
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.group_policy import levels_of
from reconsume.sidecar.settings.model import group_of
from reconsume.topics.acls import User, permissions_of
from reconsume.topics.durations import render_duration
from reconsume.topics.levels import hop_count
from reconsume.topics.names import ALIKE, alike
from reconsume.topics.outputs import literal_start
from reconsume.topics.specs import TopicSpec

MANY = 50
"""Groups for which the cost is said as well: a company rarely has one."""
LONG = 60_000
"""ms. What is shorter than the shortest level waits in memory; beyond this that may be much."""


def cost_of(settings: Settings, specs: Sequence[TopicSpec]) -> str:
    """Return a sentence on the number of topics, partitions, replicas and rights, of this group and of many, and on the
    copies that a record costs which uses up its retries."""
    rights = sum(len(permissions_of(user, group_of(settings))) for user in (User.SIDECAR, User.SPARK))
    counts = {
        "topic": len(specs),
        "partition": sum(spec.partitions for spec in specs),
        "replica": sum(spec.partitions * spec.replication for spec in specs),
        "right": rights,
    }
    one = ", ".join(plural(count, name) for name, count in counts.items())
    many = ", ".join(plural(MANY * count, name) for name, count in counts.items())
    copies = f"a record that uses up its retries is copied {plural(copies_of(settings), 'time')}"
    return f"cost: {one}; of {MANY} such groups: {many}; {copies}"


def copies_of(settings: Settings) -> int:
    """Return how often a record is copied that uses up its retries: its hops, without the dead letter."""
    if settings.deliver.broadcast or (settings.order_by is not None and not settings.queued):
        return 0
    times, delays = settings.retry.max_reconsume_times, settings.ladder.delays
    if settings.queued:
        return times
    forwards = 1 if settings.deliver.mode == "relay" else 0
    counts = [hop_count(delay, settings.delays) + forwards for delay in delays[:times]]
    return sum(counts) + max(0, times - len(delays)) * counts[-1] if counts else 0


def warnings_of(settings: Settings) -> Iterator[str]:
    """Yield a warning if short waits have no level."""
    if settings.delays and settings.delays[0] > LONG:
        shortest = render_duration(settings.delays[0])
        yield f"warning: the shortest level is {shortest}; what waits less, and the rest of a wait, is held in memory"


def refused_names(steps: Iterable[Step], there: Collection[str]) -> Iterator[str]:
    """Yield a warning for each topic that Kafka will refuse to create. `there`: the names of the cluster."""
    for name, other in alike((step.topic for step in steps if step.action == "create"), there).items():
        text = f"warning: Kafka will not create {name}: it and {other}, which exists, {ALIKE}"
        yield f"{text}; rename the group or the topic"


def missing_outputs(settings: Settings, there: Collection[str]) -> list[Row]:
    """Return a finding for each topic of `deliver.outputs` that is not there; `there`: the names of the cluster."""
    outputs = settings.deliver.outputs
    globs = [name for name in outputs if literal_start(name) != name]
    missing = [name for name in outputs if name not in globs and name not in there]
    empty = [glob for glob in globs if not fnmatch.filter(there, glob)]
    mend = "create it, or take it out of deliver.outputs: an answer that has records for it is a failure"
    return [
        *({"topic": name, "finding": "does not exist, or may not be seen", "repair": mend} for name in missing),
        *({"topic": glob, "finding": "no topic that may be seen has such a name", "repair": mend} for glob in empty),
    ]


def unused_levels(settings: Settings, there: Collection[str]) -> str | None:
    """Return a sentence on level topics that exist and are none of this configuration; None if there are none.

    `there`: the names of the cluster's topics.
    """
    # Imported late: the Kafka client comes with it, and --help needs none.
    from reconsume.sidecar.group_policy.removed_levels import unlisted_levels

    levels = sorted(unlisted_levels(settings.names, settings.topic_names, there, levels_of(settings)))
    if not levels:
        return None
    return (
        f"{plural(len(levels), 'topic')} of an earlier configuration: {', '.join(levels)}; running sidecars deliver "
        "what waits there. Use them again by `retry.levels: table` or a list that has them, or delete them once "
        "they are empty"
    )
