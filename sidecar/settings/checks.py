"""Checks between settings. `CHECKS` lists each check with the settings that it reads.

A check is skipped if one of its settings is wrong by itself, so that no fault is reported twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from reconsume.sidecar.settings.addresses import Listen, is_loopback, parse_listen
from reconsume.sidecar.settings.checks_of_topics import CHECKS_OF_TOPICS
from reconsume.sidecar.settings.checks_of_urls import CHECKS_OF_URLS
from reconsume.sidecar.settings.faults import Fault
from reconsume.sidecar.settings.header_globs import AUTHORIZATION, SIGNATURE, compared
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.sections.deliver import Deliver
from reconsume.sidecar.settings.values import KeyPath
from reconsume.topics.durations import render_duration
from reconsume.topics.levels import build_ladder, level_delays
from reconsume.topics.names import build_names, group_fault
from reconsume.topics.outputs import is_reserved

Check = Callable[[Settings], Iterator[Fault]]


REQUESTS = (
    *("url", "health_url", "health_timeout", "concurrency", "timeout", "envelope", "content_type"),
    *("forward_headers", "verdicts", "dead_letter_statuses", "throttle_statuses", "outage_failures", "outage_interval"),
    *("max_answer", "tls", "bearer_token_file", "signing_secret_file"),
)
"""Settings of `deliver` that apply only to requests to the service."""


def relay_delivers_nothing(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each delivery setting that has no effect in relay mode, unless it has its default.

    The service reads Kafka itself there. Such a setting is a mistake, so it is reported and not ignored.
    """
    if settings.deliver.mode != "relay":
        return
    text = "has no effect in relay mode, where the service reads Kafka itself; leave it out"
    yield from unusual(settings.deliver, (*REQUESTS, "order", "broadcast", "leave_after", "rate", "group_rate"), text)
    tagged = next((topic.tags for topic in settings.topics if topic.tags != "*"), None)
    if tagged is not None:
        yield Fault(("topics",), f"tags: {text}", tagged)


def pull_sends_no_requests(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each request setting that has no effect in pull mode, unless it has its default.

    The service makes the calls there. Such a setting is a mistake, so it is reported and not ignored.
    """
    if settings.deliver.mode == "pull":
        text = "is for push mode; in pull mode the service calls the sidecar; leave it out"
        yield from unusual(settings.deliver, REQUESTS, text)


def unusual(deliver: Deliver, names: Sequence[str], text: str) -> Iterator[Fault]:
    """Yield a fault for each of the settings `names`, and for `batch.max_size`, that differs from its default."""
    for name in names:
        if (value := getattr(deliver, name)) != Deliver.model_fields[name].default:
            yield Fault(("deliver", name), text, value)
    if deliver.batch.max_size != 1:
        yield Fault(("deliver", "batch", "max_size"), text, deliver.batch.max_size)


def content_type_has_effect(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each content type that no request has, as all records are sent in envelopes."""
    deliver = settings.deliver
    if deliver.mode != "push" or not (deliver.envelope or deliver.batch.max_size > 1):
        return
    text = "is for bare values: batches and the envelope have a content type of their own; leave it out"
    if deliver.content_type != "auto":
        yield Fault(("deliver", "content_type"), text, deliver.content_type)
    for number, topic in enumerate(settings.topics):
        if topic.content_type is not None:
            yield Fault(("topics", number, "content_type"), text, topic.content_type)


def order_can_be_kept(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each setting that is incompatible with ordered delivery.

    Order needs one record at a time, and that record must stay in place until it is answered.
    """
    deliver, path = settings.deliver, ("deliver", "order")
    if deliver.order == "none":
        return
    if deliver.mode == "pull":
        text = "is for push mode: a lease may end while the service still works, and the next record would overtake it"
        yield Fault(path, text, deliver.order)
    if deliver.batch.max_size > 1:
        text = "delivers one record at a time, and a batch is many at once; leave deliver.batch.max_size at 1"
        yield Fault(path, text, deliver.order)
    if settings.retry.understand:
        text = "cannot be kept for records that another system made wait; leave retry.understand empty"
        yield Fault(path, text, deliver.order)


def ordered_ladder_fits(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each setting that has no meaning beside a ladder that keeps the order, or without one."""
    retry, path = settings.retry, ("retry", "ordered_ladder")
    if retry.ordered_ladder is None:
        if retry.ordered_exhausted == "park":
            text = "is for retry.ordered_ladder: in place nothing waits; choose dead-letter, and settle what is parked"
            yield Fault(("retry", "ordered_exhausted"), text, "park")
        return
    if settings.deliver.order == "none":
        text = "keeps the order of records, and deliver.order is none: choose key or partition"
        yield Fault(path, text, has_value=False)
    if retry.ordered_max_times is not None:
        text = "is for tries in place; with retry.ordered_ladder retry.max_reconsume_times decides: leave it out (null)"
        yield Fault(("retry", "ordered_max_times"), text, retry.ordered_max_times)
    try:
        build_ladder(retry.ordered_ladder)
    except ValueError as error:
        yield Fault(path, str(error), has_value=False)


def broadcast_stands_alone(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each setting that is incompatible with broadcast.

    Every instance gets every record by push, and no record waits for a failed one.
    """
    deliver, path = settings.deliver, ("deliver", "broadcast")
    if not deliver.broadcast:
        return
    if deliver.mode == "pull":
        yield Fault(path, "is for push mode: a lease that ends is a retry, and a broadcast has none", True)
    if deliver.order != "none":
        text = "never retries, so it cannot hold back what follows a failure; leave deliver.order at none"
        yield Fault(path, text, True)
    if settings.view.enabled:
        yield Fault(("view", "enabled"), "has no effect in broadcast mode, which retries nothing; leave it out", True)


def ladder_fits(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if the ladder cannot be built, or a list of levels does not rise."""
    try:
        level_delays(settings.retry.levels, build_ladder(settings.retry.ladder))
    except ValueError as error:
        yield Fault(("retry", "ladder"), str(error), has_value=False)


def rules_fit(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each rule with a ladder that cannot be built, or with values that have no effect."""
    in_place = settings.deliver.order != "none" and not settings.queued
    for number, rule in enumerate(settings.retry.rules):
        path = ("retry", "rules", number)
        try:
            build_ladder(settings.retry.ladder if rule.ladder is None else rule.ladder)
        except ValueError as error:
            yield Fault((*path, "ladder"), str(error), has_value=False)
            return
        for name in ("ladder", "max_reconsume_times"):
            if in_place and getattr(rule, name) is not None:
                text = "has no effect with deliver.order, which retries in place by ordered_interval; leave it out"
                yield Fault((*path, name), text, has_value=False)
    try:
        _ = settings.delays
    except ValueError as error:
        yield Fault(("retry", "rules"), str(error), has_value=False)


def group_is_apart(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if the group's name is one that another group derives from its own."""
    if fault := group_fault(settings.group):
        yield Fault(("group",), fault, settings.group)


def names_fit(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if Kafka refuses one of the topic names, or a main topic is one of the group's own topics."""
    try:
        build_names(
            settings.group, settings.topic_names, settings.delays, settings.topic_prefix, ordered=settings.queued
        )
    except ValueError as error:
        yield Fault(("topics",), f"with group {settings.group}: {error}", has_value=False)


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


def outputs_can_be_written(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each setting with which an answer's records could not be read or written."""
    deliver, path = settings.deliver, ("deliver", "outputs")
    if not deliver.outputs:
        return
    if deliver.mode == "relay":
        yield Fault(path, "has no effect in relay mode, where the service writes to Kafka itself; leave it out")
    if deliver.broadcast:
        yield Fault(path, "cannot be written in broadcast mode, which has no transaction; leave it out")
    if deliver.verdicts == "header":
        yield Fault(path, "needs deliver.verdicts: all, as outputs stand in a body beside their verdict")
    for number, topic in enumerate(deliver.outputs):
        if is_reserved(topic):
            text = "is the name of topics of a group, or of Kafka's own ones, which take no outputs; leave it out"
            yield Fault((*path, number), text, topic)


def lock_is_shorter(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if `lock_timeout` is not shorter than `max.poll.interval.ms`.

    A rebalance must stop waiting before Kafka removes the waiting member from the group.
    """
    limit = settings.poll_interval
    if settings.lock_timeout is not None and settings.lock_timeout >= limit:
        wait = render_duration(settings.lock_timeout)
        yield Fault(("lock_timeout",), f"must be shorter than kafka's max.poll.interval.ms, {limit} ms", wait)


def api_is_guarded(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if the API listens outside loopback without a token."""
    listen = parse_listen(settings.api.listen)
    if listen.path is None and not is_loopback(listen.host) and settings.api.token_file is None:
        yield Fault(("api", "listen"), "is outside loopback, and needs api.token_file", settings.api.listen)


def listeners_differ(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each pair of listeners on one port or socket, unless the system chooses the port."""
    api, probes = settings.listen, settings.probe_listen
    if probes is not None and clash(api, probes):
        text = "is the same as api.listen; null serves the probes there"
        yield Fault(("api", "probe_listen"), text, settings.api.probe_listen)
    for name, other in (("listen", api), ("probe_listen", probes)):
        if settings.ui.enabled and other is not None and clash(settings.ui.address, other):
            yield Fault(("ui", "listen"), f"is the same as api.{name}, and others call that one", settings.ui.listen)


def dashboard_is_guarded(settings: Settings) -> Iterator[Fault]:
    """Yield a fault for each missing protection of the dashboard, and if it has no effect in broadcast mode.

    Outside loopback the dashboard needs tokens. With tokens it needs an audit file, because it then allows actions.
    """
    ui = settings.ui
    if not ui.enabled:
        return
    if settings.deliver.broadcast:
        yield Fault(("ui", "enabled"), "has no effect in broadcast mode, which retries nothing; leave it out", True)
    if ui.address.path is None and not is_loopback(ui.address.host) and settings.operators.token_file is None:
        yield Fault(("ui", "listen"), "is outside loopback, and needs operators.token_file, and ui.hosts", ui.listen)
    operators = settings.operators
    if operators.token_file is not None and operators.audit_file is None:
        text = "is required with operators.token_file: what is done on the dashboard is written there first"
        yield Fault(("operators", "audit_file"), text, has_value=False)


def reading_can_be_unlocked(settings: Settings) -> Iterator[Fault]:
    """Yield a fault if values need a sign-in and nobody can sign in."""
    if settings.ui.read == "signed-in" and settings.operators.token_file is None:
        text = "needs operators.token_file: without an operator's token nobody can sign in"
        yield Fault(("ui", "read"), text, settings.ui.read)


def clash(one: Listen, other: Listen) -> bool:
    """Whether two listeners need the same socket or port."""
    if one.path is not None or other.path is not None:
        return one.path == other.path
    wild = {"0.0.0.0", "::"}
    return one.port == other.port != 0 and (one.host == other.host or bool(wild & {one.host, other.host}))


CHECKS: tuple[tuple[Check, tuple[KeyPath, ...]], ...] = (
    *CHECKS_OF_URLS,
    *CHECKS_OF_TOPICS,
    (
        relay_delivers_nothing,
        (
            *(("deliver", name) for name in ("mode", *REQUESTS, "order", "broadcast", "batch", "rate", "group_rate")),
            ("topics",),
        ),
    ),
    (
        content_type_has_effect,
        (*(("deliver", name) for name in ("mode", "envelope", "batch", "content_type")), ("topics",)),
    ),
    (pull_sends_no_requests, tuple(("deliver", name) for name in ("mode", *REQUESTS, "batch"))),
    (
        order_can_be_kept,
        (("deliver", "order"), ("deliver", "mode"), ("deliver", "batch"), ("retry", "understand")),
    ),
    (
        broadcast_stands_alone,
        (("deliver", "broadcast"), ("deliver", "mode"), ("deliver", "order"), ("view", "enabled")),
    ),
    (
        ordered_ladder_fits,
        (
            *(("retry", name) for name in ("ordered_ladder", "ordered_exhausted", "ordered_max_times")),
            ("deliver", "order"),
        ),
    ),
    (ladder_fits, (("retry", "ordered_ladder"), ("retry", "ladder"), ("retry", "levels"))),
    (rules_fit, (("retry", "rules"), ("retry", "ladder"), ("retry", "levels"), ("deliver", "order"))),
    (group_is_apart, (("group",),)),
    (
        names_fit,
        (
            *(("group",), ("topics",), ("topic_prefix",)),
            *(("retry", name) for name in ("ladder", "rules", "levels", "ordered_ladder")),
        ),
    ),
    (
        forwarded_headers_are_the_records,
        (("deliver", "forward_headers"), ("deliver", "bearer_token_file"), ("deliver", "signing_secret_file")),
    ),
    (
        outputs_can_be_written,
        (("deliver", "outputs"), ("deliver", "mode"), ("deliver", "broadcast"), ("deliver", "verdicts")),
    ),
    (lock_is_shorter, (("lock_timeout",), ("kafka",))),
    (
        api_is_guarded,
        (("api", "listen"), ("api", "token_file")),
    ),
    (listeners_differ, (("api", "listen"), ("api", "probe_listen"), ("ui", "listen"), ("ui", "enabled"))),
    (reading_can_be_unlocked, (("ui", "read"), ("operators", "token_file"))),
    (
        dashboard_is_guarded,
        (
            *(("ui", "enabled"), ("ui", "listen"), ("deliver", "broadcast")),
            *(("operators", "token_file"), ("operators", "audit_file")),
        ),
    ),
)


def cross_faults(settings: Settings, wrong: Sequence[KeyPath] = ()) -> list[Fault]:
    """Return the faults between settings. Skip each check that reads one of `wrong`.

    A check is also skipped if it reads a setting in which an earlier check found a fault.
    """
    all_faults: list[Fault] = []
    blind = list(wrong)
    for check, reads in CHECKS:
        if not any(touches(path, read) for path in blind for read in reads):
            faults = list(check(settings))
            all_faults += faults
            blind += [fault.path for fault in faults]
    return all_faults


def touches(one: KeyPath, other: KeyPath) -> bool:
    """Whether one path leads to the other or into it."""
    short = min(len(one), len(other))
    return one[:short] == other[:short]
