"""The whole configuration as one frozen value, and what follows from it: names, ladder, levels, waits and addresses.

`Settings` has the top level of the table of settings (`table.py`); its sections are in `deliver.py`, `sections.py` and
`kafka.py`. `load.validate` makes it and has checked it, so no property below meets a wrong value. It never changes; the
group's policy makes another one (`group_policy.overridden`). Any thread may read it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from reconsume.sidecar.settings.addresses import Listen, is_loopback
from reconsume.sidecar.settings.deliver import SUBSCRIPTIONS, Deliver, Subscription
from reconsume.sidecar.settings.kafka import KAFKA, MAX_POLL_INTERVAL, Kafka
from reconsume.sidecar.settings.labels import LABELS, Labels
from reconsume.sidecar.settings.sections import FOLDER, Api, Log, Operators, Pull, Read, Retry, Rule, Tracing, Ui, View
from reconsume.sidecar.settings.table import REQUIRED, Row, Section, duration, section, setting, text
from reconsume.topics import tags
from reconsume.topics.acls import GroupShape
from reconsume.topics.durations import parse_duration as ms
from reconsume.topics.levels import Ladder, build_ladder, level_delays
from reconsume.topics.names import Names
from reconsume.topics.outputs import literal_start
from reconsume.topics.retry_rules import RetryRule

GROUP = text("letters of ASCII, digits and . _ -, because topics are named after it", r"[a-zA-Z0-9._-]{1,249}")

RELEASE_MARGIN = ms("5s")
"""By how much the default of `lock_timeout` is longer than a delivery: its outcome is committed in that time."""
POLL_MARGIN = ms("10s")
"""By how much it is shorter than max.poll.interval.ms: defaults alone never cause a second delivery."""
SHORTEST_RELEASE = ms("1s")


@dataclass(frozen=True, kw_only=True)
class Settings(Section):
    """Everything that a user can set; made by `load`, which also checks what settings must agree on."""

    group: str = setting(
        REQUIRED,
        (
            "The service's consumer group. Its retry topics are named after it, and all instances of one "
            "service share it."
        ),
        GROUP,
    )
    labels: Labels = setting(
        {},
        (
            "Who the group belongs to, such as {team: payments, channel: '#payments', runbook: https://…}: in "
            "`reconsume_info`, heartbeats, pages and exported topics. The alerts carry team, channel and runbook."
        ),
        LABELS,
    )
    topics: tuple[Subscription, ...] = setting(
        REQUIRED,
        (
            "The main topics, each by its name or as {name, tags, drains, path, timeout, concurrency, rate}: what an "
            "entry has of its own holds for the topic's retries and redrives too."
        ),
        SUBSCRIPTIONS,
    )
    tags_header: str = setting(
        tags.HEADER,
        "The header of a record that has its tag, which `tags` of a topic are compared with. Its case counts.",
        text("the name of a header, at most 255 characters", tags.HEADER_FORM),
    )
    kafka_secret: str | None = setting(
        None,
        (
            "Where the secret of a Strimzi KafkaUser is mounted, mTLS or SCRAM: login, keys and `security.protocol` "
            "come from there, unless `kafka` sets them. The brokers' CA is another secret: `ssl.ca.location`."
        ),
        FOLDER,
    )
    kafka: Kafka = setting(
        REQUIRED,
        (
            "Any librdkafka property, with `bootstrap.servers`. Those that would break the promise are refused, "
            "each with its reason. Secrets may stand in files: `sasl.password.file: /run/secrets/password`."
        ),
        KAFKA,
    )
    start: Literal["earliest", "latest"] = setting(
        "earliest",
        (
            "Where a group begins that has no progress yet. `latest` is about its first start alone: where it begins "
            "is committed at once, and partitions that are added later begin at their beginning. Level topics always "
            "begin at the earliest. It is not used for a lost offset, which is counted and resumed at the earliest."
        ),
    )
    deliver: Deliver = section(Deliver, "How records reach the service.")
    retry: Retry = section(Retry, "How often and when a failed record is tried again.")
    pull: Pull = section(Pull, "Limits of pull mode.")
    topic_prefix: Literal["{group}", "{topic}-{group}"] = setting(
        "{group}",
        (
            "What level topics and the DLQ are named after. `{topic}-{group}` gives each main topic its own "
            "set: more topics, and one topic's retries never stand behind another's."
        ),
    )
    api: Api = section(Api, "Where the sidecar itself listens.")
    view: View = section(View, "The group-wide view.")
    ui: Ui = section(Ui, "The dashboard in the sidecar.")
    operators: Operators = section(Operators, "Who may change the group on the dashboard and by the API.")
    membership: Literal["service", "always"] = setting(
        "service",
        (
            "When this instance is a member of the consumer group. `service`: from when its service accepts a "
            "connection, or `deliver.health_url` is well (pull: from the first receive), until it was away for "
            "`deliver.leave_after`. `always`: from the start, as broadcast and relay."
        ),
    )
    policy_mode: Literal["agreed", "own", "strict"] = setting(
        "agreed",
        (
            "Whose retry settings apply. `agreed`: the group's policy (`reconsume policy set`), and below it those of "
            "the live instance whose are the newest. `own`: the policy over this configuration, which none follows. "
            "`strict`: as `own`, and an instance that is configured otherwise than the policy says refuses to start."
        ),
    )
    drain_timeout: int | None = setting(
        None,
        (
            "How long a stop waits for the deliveries in flight. null: as long as `lock_timeout`. What kills the "
            "process must wait 5s longer; `reconsume inject` sets this from the grace period of the pod."
        ),
        duration("0s", "1h").or_null(),
    )
    lock_timeout: int | None = setting(
        None,
        (
            "How long a partition that a rebalance takes away waits for its deliveries; the whole group waits with it. "
            "It must be shorter than kafka's max.poll.interval.ms. null: 5s more than the longest `timeout` of the "
            "group and its topics, but at least 10s less than max.poll.interval.ms (4m50s by default)."
        ),
        duration("0s", "1h").or_null(),
    )
    tracing: Tracing = section(Tracing, "Attempts as spans.")
    log: Log = section(Log, "What is written to stderr.")
    configured: frozenset[tuple[str, ...]] = dataclasses.field(default=frozenset(), compare=False, repr=False)
    """The paths of the settings that file, environment or `--set` gave; the others have their defaults."""

    @functools.cached_property
    def topic_names(self) -> tuple[str, ...]:
        """The names of the main topics."""
        return tuple(topic.name for topic in self.topics)

    @functools.cached_property
    def drains(self) -> dict[str, str]:
        """The main topic of each drained topic: its records count as records of that one."""
        return {topic.name: topic.drains for topic in self.topics if topic.drains is not None}

    @functools.cached_property
    def names(self) -> Names:
        """The names of the group's topics."""
        return Names(self.group, self.topic_prefix)

    @functools.cached_property
    def ladder(self) -> Ladder:
        """The wait before each retry. Raises ValueError if it is invalid; `load` has checked it."""
        return build_ladder(self.retry.ordered_ladder or self.retry.ladder)

    @property
    def queued(self) -> bool:
        """Whether order survives long waits, in queue topics."""
        return self.retry.ordered_ladder is not None

    @property
    def order_by(self) -> Literal["key", "partition"] | None:
        """By what records are delivered one at a time; None if they are not."""
        return None if self.deliver.order == "none" else self.deliver.order

    @property
    def drained(self) -> bool:
        """Whether queue topics are read where they exist, so that what waits there goes on without a ladder too."""
        if self.deliver.order == "none" or self.deliver.mode != "push" or self.deliver.broadcast:
            return False
        try:
            self.names.check(self.topic_names, (), ordered=True)
        except ValueError:
            return False  # Kafka takes no such names, so nothing waits there
        return True

    @functools.cached_property
    def retry_rules(self) -> tuple[RetryRule, ...]:
        """The rules by topic and reason, complete. Raises ValueError if a ladder is invalid; `load` has checked it."""
        return tuple(self._complete(rule) for rule in self.retry.rules)

    def _complete(self, rule: Rule) -> RetryRule:
        """Return a rule with the group's values where it has none."""
        times = rule.max_reconsume_times
        return RetryRule(
            name=rule.name,
            topics=rule.topics,
            reasons=rule.reasons,
            ladder=self.ladder if rule.ladder is None else build_ladder(rule.ladder),
            max_reconsume_times=self.retry.max_reconsume_times if times is None else times,
            max_age=self.retry.max_age if rule.max_age is None else rule.max_age,
            dead_letter=rule.dead_letter,
            has_own_ladder=rule.ladder is not None,
        )

    @functools.cached_property
    def delays(self) -> tuple[int, ...]:
        """Every delay that has a level topic, in ms, ascending; none if failures are retried in place.

        Raises ValueError if a list is invalid; `load` has checked it.
        """
        levels = self.retry.levels
        if self.queued or (self.deliver.order != "none" and levels in (None, "ladder")):
            return ()
        return level_delays(levels, self.ladder, *(rule.ladder for rule in self.retry_rules))

    @property
    def longest_delivery(self) -> int:
        """The longest that a delivery may take, in ms: the longest timeout of the group and its topics."""
        own = (topic.timeout for topic in self.topics if topic.timeout is not None)
        return max(self.deliver.timeout, *own, 0)

    @property
    def poll_interval(self) -> int:
        """Kafka's max.poll.interval.ms."""
        text = self.kafka.get("max.poll.interval.ms", "")
        return int(text) if text.isdecimal() else MAX_POLL_INTERVAL

    @property
    def longest_release(self) -> int:
        """How long a partition that a rebalance takes away waits at most, whatever timeout the policy has, in ms."""
        derived = max(SHORTEST_RELEASE, self.poll_interval - POLL_MARGIN)
        return derived if self.lock_timeout is None else self.lock_timeout

    @property
    def longest_drain(self) -> int:
        """How long a stop waits at most, whatever timeout the policy has, in ms."""
        return self.longest_release if self.drain_timeout is None else self.drain_timeout

    @property
    def release_wait(self) -> int:
        """How long a partition that a rebalance takes away waits for its deliveries, in ms: `lock_timeout`."""
        derived = min(self.longest_delivery + RELEASE_MARGIN, self.longest_release)
        return derived if self.lock_timeout is None else self.lock_timeout

    @property
    def drain_wait(self) -> int:
        """How long a stop waits for the deliveries in flight, in ms: `drain_timeout`."""
        return self.release_wait if self.drain_timeout is None else self.drain_timeout

    @property
    def read(self) -> Read:
        """Who may see keys, values, headers and texts: every reader, or only those who have signed in."""
        guarded = self.operators.token_file is not None or (self.ui.enabled and is_far(self.ui.listen))
        return self.ui.read or ("signed-in" if guarded else "open")


def is_far(listen: Listen) -> bool:
    """Return whether an address can be reached from outside this machine or pod."""
    return listen.path is None and not is_loopback(listen.host)


def group_of(settings: Settings, *, direct: bool = False) -> GroupShape:
    """Return the properties of the group that its users' rights depend on.

    `direct`: the service of a relay writes retries itself. Which topics a glob of `deliver.outputs` means only Kafka
    knows: they are left out.
    """
    deliver = settings.deliver
    return GroupShape(
        names=settings.names,
        topics=settings.topic_names,
        delays=settings.delays,
        mode=deliver.mode,
        broadcast=deliver.broadcast,
        view=settings.view.enabled,
        source=settings.view.source,
        ui=settings.ui.enabled,
        redrives=settings.ui.enabled and settings.operators.token_file is not None,
        direct=direct,
        outputs=tuple(name for name in deliver.outputs if literal_start(name) == name),
        ordered=settings.queued,
    )


def rows_below(of: type[Section], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Yield the row of every section and setting, with its path, in the order of the file."""
    for name, row in of.rows().items():
        yield (*above, name), row
        if row.kind.section is not None:
            yield from rows_below(row.kind.section, (*above, name))


ROWS = dict(rows_below(Settings))
"""The whole table of settings: the row of each section and setting, by its path, in the order of the file."""
LEAVES = {path: row for path, row in ROWS.items() if row.kind.section is None}
"""The rows of the settings alone."""


def values_of(settings: Settings) -> dict[tuple[str, ...], Any]:
    """Return the value of every setting, as it is written in YAML, by its path."""
    return {path: row.kind.give(functools.reduce(getattr, path, settings)) for path, row in LEAVES.items()}
