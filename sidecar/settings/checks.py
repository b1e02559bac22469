"""Check the settings against each other.

`validate` calls `cross_faults` with settings of which each one is right by itself, or has its default in place of a
wrong value. There are two forms of checks:

- `CONFLICTS` is a table: while the settings of `when` have these values, each of `settings` that was changed is a
  fault, because it would have no effect or could not be kept. Such a setting is a mistake, so it is reported and not
  ignored.
- What needs more than a comparison is a function with `@check`, which names the settings that it reads.

A check is skipped if a setting that it reads is wrong by itself, or was found wrong by an earlier check. So no fault is
reported twice, and their order matters: what rules out the others comes first.

The last part has warnings: about settings that are right, and with which something happens that nobody wants. `config
check`, `run` and `policy set` print these sentences; nothing is refused because of them. A delivery that takes longer
than a rebalance or a stop waits for it is made twice (`short_waits`, contract 5.4, 9.1); a limit of a topic that never
binds has no effect; a secret may cross a network in plain text (`exposed`). Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reconsume.sidecar.core.pace.concurrency import MOST
from reconsume.sidecar.settings.addresses import Listen, is_local_url, is_tls_url
from reconsume.sidecar.settings.deliver import AUTHORIZATION, SIGNATURE, Tls, compared
from reconsume.sidecar.settings.model import LEAVES, Settings, is_far, values_of
from reconsume.sidecar.settings.table import Fault, KeyPath, dotted
from reconsume.topics.durations import render_duration
from reconsume.topics.levels import build_ladder, level_delays
from reconsume.topics.names import build_names, group_fault
from reconsume.topics.outputs import is_reserved
from reconsume.topics.policy_record import SubscriptionRecord
from reconsume.topics.rates import render_rate

DEFAULTS: Mapping[str, object] = {dotted(path): row.default for path, row in LEAVES.items()}
"""The default of each setting, as written in YAML, by its dotted path."""
CHANGED = object()
"""In `when`: any value but the default."""
IN_REQUESTS = tuple(
    f"deliver.{name}"
    for name in (
        "url",
        "health_url",
        "health_timeout",
        "concurrency",
        "timeout",
        "envelope",
        "content_type",
        "forward_headers",
        "verdicts",
        "dead_letter_statuses",
        "throttle_statuses",
        "outage_failures",
        "outage_interval",
        "max_answer",
        "tls.ca_file",
        "tls.cert_file",
        "tls.key_file",
        "bearer_token_file",
        "signing_secret_file",
        "batch.max_size",
    )
)
"""Settings that apply only to requests to the service."""
IN_DELIVERIES = (
    "deliver.order",
    "deliver.broadcast",
    "deliver.leave_after",
    "deliver.rate",
    "deliver.group_rate",
    "deliver.idempotency",
)
"""Settings that apply only where the sidecar delivers."""
OF_TOPIC_REQUESTS = ("path", "timeout", "concurrency", "content_type")
"""What a topic may have of its own that is for requests to the service."""
OF_MAIN_TOPIC = ("tags", *OF_TOPIC_REQUESTS, "rate")
"""What a drained topic has from its main topic."""
NO_RELAY = "has no effect in relay mode, where the service reads Kafka itself; leave it out"
NO_SPARK = "has no effect in mode spark, where no sidecar delivers; leave it out"
NO_RETRIES = "has no effect in broadcast mode, which retries nothing; leave it out"
NO_BARE_VALUES = "is for bare values: batches and the envelope have a content type of their own; leave it out"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that a user must not have changed while others have the values in `when`.

    One of `settings` that is in `when`, too, need not be changed: its value there is enough.
    """

    settings: tuple[str, ...]
    when: Mapping[str, object]
    text: str

    def is_met(self, values: Mapping[str, object]) -> bool:
        """Whether the settings of `when` have these values. `values`: as written in YAML, by dotted path."""
        return all(
            values[name] != DEFAULTS[name] if wanted is CHANGED else values[name] == wanted
            for name, wanted in self.when.items()
        )


CONFLICTS = (
    Conflict(
        ("deliver.url",),
        {"deliver.mode": "push", "deliver.url": None},
        "is required in push mode, like http://127.0.0.1:8080/events or unix:/run/app/app.sock:/events",
    ),
    Conflict(IN_REQUESTS + IN_DELIVERIES, {"deliver.mode": "relay"}, NO_RELAY),
    Conflict(
        IN_REQUESTS,
        {"deliver.mode": "pull"},
        "is for push mode; in pull mode the service calls the sidecar; leave it out",
    ),
    Conflict(
        ("deliver.order",),
        {"deliver.mode": "spark"},
        "cannot be kept by Spark queries, which handle the partitions of a batch at once; let a sidecar consume the "
        "group, or leave it out",
    ),
    Conflict(
        ("deliver.broadcast",),
        {"deliver.mode": "spark"},
        "is for sidecars: a Spark query is the consumer of its group; leave it out",
    ),
    Conflict(
        ("retry.understand",),
        {"deliver.mode": "spark"},
        "is for sidecars: Spark queries know the headers of no other system; leave it out",
    ),
    *(
        Conflict(("deliver.failure_text",), {"deliver.mode": mode, "deliver.failure_text": text}, why)
        for modes, texts, why in (
            (("spark",), ("problem", "body"), "is about responses; in mode spark it is message or none"),
            (
                ("push", "pull", "relay"),
                ("message",),
                "is about exceptions in mode spark; here it is a response's text",
            ),
        )
        for mode in modes
        for text in texts
    ),
    Conflict(
        ("deliver.tls.key_file",),
        {"deliver.tls.cert_file": None},
        "is the key of deliver.tls.cert_file, which is missing",
    ),
    Conflict(("deliver.content_type",), {"deliver.envelope": True}, NO_BARE_VALUES),
    Conflict(("deliver.content_type",), {"deliver.batch.max_size": CHANGED}, NO_BARE_VALUES),
    Conflict(
        ("deliver.order",),
        {"deliver.mode": "pull"},
        "is for push mode: a lease may end while the service still works, and the next record would overtake it",
    ),
    Conflict(
        ("deliver.order",),
        {"deliver.batch.max_size": CHANGED},
        "delivers one record at a time, and a batch is many at once; leave deliver.batch.max_size at 1",
    ),
    Conflict(
        ("deliver.order",),
        {"retry.understand": CHANGED},
        "cannot be kept for records that another system made wait; leave retry.understand empty",
    ),
    Conflict(
        ("deliver.broadcast",),
        {"deliver.mode": "pull"},
        "is for push mode: a lease that ends is a retry, and a broadcast has none",
    ),
    Conflict(
        ("deliver.broadcast",),
        {"deliver.order": CHANGED},
        "never retries, so it cannot hold back what follows a failure; leave deliver.order at none",
    ),
    Conflict(("view.enabled", "ui.enabled"), {"deliver.broadcast": True}, NO_RETRIES),
    Conflict(
        ("deliver.group_rate",),
        {"deliver.broadcast": True},
        "cannot be divided in broadcast mode, where each instance gets every record; set deliver.rate",
    ),
    Conflict(
        ("retry.ordered_exhausted",),
        {"retry.ordered_ladder": None},
        "is for retry.ordered_ladder: in place nothing waits; choose dead-letter, and settle what is parked",
    ),
    Conflict(
        ("retry.ordered_ladder",),
        {"deliver.order": "none"},
        "keeps the order of records, and deliver.order is none: choose key or partition",
    ),
    Conflict(
        ("retry.ordered_max_times",),
        {"retry.ordered_ladder": CHANGED},
        "is for tries in place; with retry.ordered_ladder retry.max_reconsume_times decides: leave it out (null)",
    ),
    Conflict(
        ("deliver.outputs",),
        {"deliver.mode": "relay"},
        "has no effect in relay mode, where the service writes to Kafka itself; leave it out",
    ),
    Conflict(
        ("deliver.outputs",),
        {"deliver.broadcast": True},
        "cannot be written in broadcast mode, which has no transaction; leave it out",
    ),
    Conflict(
        ("deliver.outputs",),
        {"deliver.verdicts": "header"},
        "needs deliver.verdicts: all, as outputs stand in a body beside their verdict",
    ),
    Conflict(
        ("ui.read",),
        {"ui.read": "signed-in", "operators.token_file": None},
        "needs operators.token_file: without an operator's token nobody can sign in",
    ),
    Conflict(
        ("operators.audit_file",),
        {"operators.audit_file": None, "operators.token_file": CHANGED, "ui.enabled": True},
        "is required with operators.token_file: what is done on the dashboard is written there first",
    ),
)


# --- checks that are more than a comparison

Check = Callable[[Settings], Iterator[Fault]]
CHECKS: list[tuple[Check, tuple[str, ...]]] = []
"""Each function below, in their order, with the settings that it reads."""


def check(*reads: str) -> Callable[[Check], Check]:
    """Return a decorator that adds a function to CHECKS. `reads`: the settings that it reads."""

    def add(function: Check) -> Check:
        CHECKS.append((function, reads))
        return function

    return add


@check("topics", "deliver.mode", "deliver.envelope", "deliver.batch")
def topics_have_effect(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each setting of a topic that has no effect in the mode of delivery."""
    deliver = settings.deliver
    names: tuple[str, ...] = OF_TOPIC_REQUESTS
    text = "is for push mode; in pull mode the service calls the sidecar; leave it out"
    if deliver.mode in ("relay", "spark"):
        names, text = (*OF_TOPIC_REQUESTS, "rate"), NO_RELAY if deliver.mode == "relay" else NO_SPARK
    elif deliver.mode == "push":
        text = NO_BARE_VALUES
        names = ("content_type",) if deliver.envelope or deliver.batch.max_size > 1 else ()
    for number, topic in enumerate(settings.topics):
        for name in names:
            if getattr(topic, name) is not None:
                yield Fault(("topics", number, name), text, has_value=False)
        if deliver.mode == "relay" and topic.tags != "*":
            yield Fault(("topics", number, "tags"), NO_RELAY, topic.tags)


@check("topics", "deliver.order", "deliver.mode")
def drains_can_be_kept(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each topic that cannot be drained as it says, and for what such a topic may not have."""
    for number, topic in enumerate(settings.topics):
        if topic.drains is None:
            continue
        if text := drain_fault(settings, topic.name, topic.drains):
            yield Fault(("topics", number, "drains"), text, topic.drains)
            continue
        for name in OF_MAIN_TOPIC:
            if getattr(topic, name) not in (None, "*"):
                text = f"is that of {topic.drains}, into which this topic is drained; leave it out"
                yield Fault(("topics", number, name), text, has_value=False)


def drain_fault(settings: Settings, name: str, into: str) -> str:
    """Return why the topic `name` cannot be drained into another one; empty if it can."""
    if into == name:
        return "is the topic itself; name its main topic"
    if into not in settings.topic_names:
        return "is not in topics; add it there, or name the main topic of these records"
    if into in settings.drains:
        return f"is itself drained into {settings.drains[into]}; name that one"
    if settings.deliver.order != "none":
        return (
            "has records whose order deliver.order cannot keep: they were waiting elsewhere; leave drains or order out"
        )
    if settings.deliver.mode == "spark":
        return "is for sidecars: Spark queries take each topic for itself; leave it out"
    return ""


@check("deliver.url", "deliver.health_url", "deliver.allow_remote")
def urls_are_local(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each URL outside loopback, unless `deliver.allow_remote` is set."""
    deliver = settings.deliver
    for name, url in (("url", deliver.url), ("health_url", deliver.health_url)):
        if url is not None and not deliver.allow_remote and not is_local_url(url):
            text = "is not on loopback; run the sidecar beside the service, or set deliver.allow_remote: true"
            yield Fault(("deliver", name), text, url)


@check("deliver.url", "deliver.health_url", "deliver.mode", "deliver.tls")
def tls_has_effect(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if certificates are named and no URL is https."""
    if settings.deliver.mode == "push" and settings.deliver.tls != Tls() and not settings.deliver.by_tls:
        text = "has no effect without https in deliver.url or deliver.health_url; leave it out, or write https"
        yield Fault(("deliver", "tls"), text, has_value=False)


@check("deliver.forward_headers", "deliver.bearer_token_file", "deliver.signing_secret_file")
def forwarded_headers_are_the_records(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each forwarded header that the sidecar adds to each request itself."""
    deliver = settings.deliver
    added = (SIGNATURE if deliver.signing_secret_file else frozenset()) | (
        {AUTHORIZATION} if deliver.bearer_token_file else frozenset()
    )
    for number, name in enumerate(deliver.forward_headers):
        if compared(name) in added:
            text = "is a header that the sidecar adds itself (bearer_token_file, signing_secret_file): leave it out"
            yield Fault(("deliver", "forward_headers", number), text, name)


@check("deliver.outputs")
def outputs_can_be_written(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each topic to which no service may have records written."""
    for number, topic in enumerate(settings.deliver.outputs):
        if is_reserved(topic):
            text = "is the name of topics of a group, or of Kafka's own ones, which take no outputs; leave it out"
            yield Fault(("deliver", "outputs", number), text, topic)


@check("retry.ordered_ladder", "retry.ladder", "retry.levels", "retry.rules", "deliver.order")
def ladders_can_be_built(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if a ladder cannot be built, a list of levels does not rise, or there would be too many levels."""
    retry = settings.retry
    path: KeyPath = ("retry", "ladder")
    try:
        level_delays(retry.levels, build_ladder(retry.ladder))
        path = ("retry", "ordered_ladder")
        _ = settings.ladder
        for number, rule in enumerate(retry.rules):
            path = ("retry", "rules", number, "ladder")
            build_ladder(retry.ladder if rule.ladder is None else rule.ladder)
        path = ("retry", "rules")
        _ = settings.delays
    except ValueError as error:
        yield Fault(path, str(error), has_value=False)


@check("retry.rules", "retry.ordered_ladder", "deliver.order")
def rules_have_effect(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each value of a rule that has no effect because failures are retried in place."""
    if settings.deliver.order == "none" or settings.queued:
        return
    for number, rule in enumerate(settings.retry.rules):
        for name in ("ladder", "max_reconsume_times"):
            if getattr(rule, name) is not None:
                text = "has no effect with deliver.order, which retries in place by ordered_interval; leave it out"
                yield Fault(("retry", "rules", number, name), text, has_value=False)


@check("group")
def group_is_apart(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if the group's name is one that another group derives from its own."""
    if fault := group_fault(settings.group):
        yield Fault(("group",), fault, settings.group)


@check(
    "group", "topics", "topic_prefix", *(f"retry.{name}" for name in ("ladder", "rules", "levels", "ordered_ladder"))
)
def names_fit(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if Kafka refuses one of the topic names, or a main topic is one of the group's own topics."""
    names = (settings.group, settings.topic_names, settings.delays, settings.topic_prefix)
    try:
        build_names(*names, ordered=settings.queued)
    except ValueError as error:
        yield Fault(("topics",), f"with group {settings.group}: {error}", has_value=False)


@check("lock_timeout", "kafka")
def lock_is_shorter(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if `lock_timeout` is not shorter than `max.poll.interval.ms`.

    A rebalance must stop waiting before Kafka removes the waiting member from the group.
    """
    limit = settings.poll_interval
    if settings.lock_timeout is not None and settings.lock_timeout >= limit:
        wait = render_duration(settings.lock_timeout)
        yield Fault(("lock_timeout",), f"must be shorter than kafka's max.poll.interval.ms, {limit} ms", wait)


@check("api.listen", "api.token_file")
def api_is_guarded(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if the API listens outside loopback without a token."""
    if is_far(settings.api.listen) and settings.api.token_file is None:
        yield Fault(("api", "listen"), "is outside loopback, and needs api.token_file", str(settings.api.listen))


@check("ui.enabled", "ui.listen", "operators.token_file")
def dashboard_is_guarded(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if the dashboard listens outside loopback without a token."""
    ui = settings.ui
    if ui.enabled and is_far(ui.listen) and settings.operators.token_file is None:
        yield Fault(
            ("ui", "listen"), "is outside loopback, and needs operators.token_file, and ui.hosts", str(ui.listen)
        )


@check("api.listen", "api.probe_listen", "ui.listen", "ui.enabled")
def listeners_differ(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each pair of listeners on one port or socket, unless the system chooses the port."""
    api, probes, ui = settings.api.listen, settings.api.probe_listen, settings.ui
    if probes is not None and clash(api, probes):
        text = "is the same as api.listen; null serves the probes there"
        yield Fault(("api", "probe_listen"), text, str(probes))
    for name, other in (("listen", api), ("probe_listen", probes)):
        if ui.enabled and other is not None and clash(ui.listen, other):
            yield Fault(("ui", "listen"), f"is the same as api.{name}, and others call that one", str(ui.listen))


def clash(one: Listen, other: Listen) -> bool:
    """Whether two listeners need the same socket or port."""
    if one.path is not None or other.path is not None:
        return one.path == other.path
    wild = {"0.0.0.0", "::"}
    return one.port == other.port != 0 and (one.host == other.host or bool(wild & {one.host, other.host}))


def cross_faults(settings: Settings, wrong: Sequence[KeyPath] = ()) -> list[Fault]:
    """Return the faults between settings. A check that reads one of `wrong`, or an earlier fault, is skipped."""
    faults: list[Fault] = []
    blind = list(wrong)
    values = {dotted(path): value for path, value in values_of(settings).items()}

    def is_wrong(name: str) -> bool:
        """Whether a setting, or a part or section of it, is known to be wrong."""
        path = tuple(name.split("."))
        return any(path[: len(bad)] == bad[: len(path)] for bad in blind)

    for conflict in CONFLICTS:
        if conflict.is_met(values) and not any(map(is_wrong, conflict.when)):
            changed = {name for name in conflict.settings if values[name] != DEFAULTS[name]}
            at_fault = [name for name in conflict.settings if name in changed or name in conflict.when]
            more_faults = [
                Fault(tuple(name.split(".")), conflict.text, values[name], has_value=values[name] is not None)
                for name in at_fault
                if not is_wrong(name)
            ]
            faults += more_faults
            blind += [fault.path for fault in more_faults]
    for function, reads in CHECKS:
        if not any(map(is_wrong, reads)):
            more_faults = list(function(settings))
            faults += more_faults
            blind += [fault.path for fault in more_faults]
    return faults


# --- warnings

MOST_NAMED = 3
MANY_RETRIES = 100
"""Above so many retries a warning is given: RocketMQ, whose default is 16, takes any number too."""


def endless_retries(settings: Settings) -> list[str]:
    """Return a sentence for each limit of retries that is high, or that was written as null."""
    retry = settings.retry
    named = {"retry.max_reconsume_times": retry.max_reconsume_times}
    named["retry.ordered_max_times"] = retry.ordered_max_times or 0
    for number, rule in enumerate(retry.rules):
        named[f"retry.rules[{number}].max_reconsume_times"] = rule.max_reconsume_times or 0
    sentences = [
        f"{name} = {times}: each record that always fails is tried at least {times} times before it is a dead letter; "
        "retry.max_age bounds the time instead"
        for name, times in named.items()
        if times > MANY_RETRIES
    ]
    in_place = settings.order_by is not None and not settings.queued
    if in_place and retry.ordered_max_times is None and ("retry", "ordered_max_times") in settings.configured:
        sentences.append(
            "retry.ordered_max_times = null: a record that always fails blocks its key without end, until an operator "
            "or the service ends it"
        )
    return sentences


def short_waits(settings: Settings) -> list[str]:
    """Return a sentence for each wait that ends before the longest delivery does (contract 5.4, 9.1)."""
    if settings.deliver.mode != "push":
        return []
    longest, takes = settings.longest_delivery, render_duration(settings.longest_delivery)
    released, drained = settings.release_wait, settings.drain_wait
    sentences = []
    if released < longest:
        what = "a record" if settings.order_by is None else "two records of a key"
        twice = "may be delivered twice at once" if settings.order_by is None else "may be in flight at once"
        sentences.append(
            f"a delivery may take {takes} (deliver.timeout), and a partition that a rebalance takes away waits "
            f"{render_duration(released)} for it (lock_timeout): {what} {twice} then; shorten the timeout, or make "
            "lock_timeout the longer one"
        )
    if drained < longest:
        sentences.append(
            f"a delivery may take {takes} (deliver.timeout), and a stop waits {render_duration(drained)} for it "
            "(drain_timeout): a delivery that is cut off is made again; shorten the timeout, or make drain_timeout "
            "and the grace period longer"
        )
    return sentences


def short_waits_of_instances(settings: Settings, instances: Mapping[str, SubscriptionRecord]) -> list[str]:
    """Return a sentence for each wait that ends before the longest delivery does, at a live instance.

    `settings`: those that the policy would make. `instances`: what live instances say of themselves, by name.
    """
    if settings.deliver.mode != "push":
        return []
    longest, sentences = settings.longest_delivery, []
    for setting, what in (
        ("lock_timeout", "a partition that a rebalance takes away waits"),
        ("drain_timeout", "a stop waits"),
    ):
        waits = {name: getattr(record, setting) for name, record in instances.items()}
        short = {name: wait for name, wait in waits.items() if isinstance(wait, int) and wait < longest}
        if short:
            names = ", ".join(sorted(short)[:MOST_NAMED]) + (" and others" if len(short) > MOST_NAMED else "")
            sentences.append(
                f"a delivery may take {render_duration(longest)} then, and at {names} {what} at most "
                f"{render_duration(min(short.values()))} for it ({setting}): a delivery that is cut off is made again"
            )
    return sentences


def without_effect(settings: Settings) -> list[str]:
    """Return a sentence for each limit of a topic that never binds, as a limit of all binds first."""
    deliver, sentences = settings.deliver, []
    text = "topics: {0} {1} of {2} has no effect: deliver.{0} is {3}"
    for topic in settings.topics:
        if topic.concurrency is not None and topic.concurrency > deliver.most_requests:
            most = f"auto, at most {MOST}" if deliver.fixed_concurrency is None else deliver.concurrency
            sentences.append(text.format("concurrency", topic.concurrency, topic.name, most))
        rate, of_all = topic.rate, deliver.rate
        if rate is not None and of_all is not None and rate.count * of_all.per_ms > of_all.count * rate.per_ms:
            sentences.append(text.format("rate", render_rate(rate), topic.name, render_rate(of_all)))
    return sentences


def exposed(settings: Settings) -> list[str]:
    """Return a sentence for each secret that crosses a network in plain text, and for what a signature leaves open."""
    deliver = settings.deliver
    if deliver.url is None or is_local_url(deliver.url) or is_tls_url(deliver.url):
        return []
    sentences = []
    if deliver.bearer_token_file is not None:
        sentences.append(
            "deliver.bearer_token_file: its token crosses the network in plain text, as deliver.url is not https"
        )
    if deliver.signing_secret_file is not None and not deliver.envelope and deliver.batch.max_size == 1:
        sentences.append(
            "deliver.signing_secret_file: a signature covers the body and the id, and deliver.url is not https: key, "
            "topic, path and Idempotency-Key can be changed on the way; set deliver.envelope, or use https"
        )
    return sentences
