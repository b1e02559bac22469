"""What settings must agree on: each check names the settings that it reads and says what does not fit.

A check runs only when none of its settings is wrong by itself, so that no fault is reported twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sidecar.settings.addresses import Listen, is_local_url, is_loopback, parse_listen
from sidecar.settings.faults import Fault
from sidecar.settings.model import Settings
from sidecar.settings.sections.deliver import Deliver
from sidecar.settings.sections.kafka import MAX_POLL_INTERVAL
from sidecar.settings.values import KeyPath
from topics.durations import render_duration
from topics.levels import build_ladder
from topics.names import build_names

Check = Callable[[Settings], Iterator[Fault]]


def url_is_given(settings: Settings) -> Iterator[Fault]:
    """Push has somewhere to push to."""
    if settings.deliver.mode == "push" and settings.deliver.url is None:
        text = "is required in push mode, like http://127.0.0.1:8080/events or unix:/run/app/app.sock:/events"
        yield Fault(("deliver", "url"), text, given=False)


REQUESTS = (
    *("url", "health_url", "concurrency", "timeout", "envelope"),
    *("forward_headers", "dead_letter_statuses", "outage_failures", "outage_interval"),
)
"""Settings of `deliver` that only a request to the service can honour."""


def relay_delivers_nothing(settings: Settings) -> Iterator[Fault]:
    """Where the service reads Kafka itself, what only a delivery could honour is a mistake, and not passed over."""
    if settings.deliver.mode != "relay":
        return
    text = "has no effect in relay mode, where the service reads Kafka itself; leave it out"
    yield from unusual(settings.deliver, (*REQUESTS, "order", "broadcast"), text)
    tagged = next((topic.tags for topic in settings.topics if topic.tags != "*"), None)
    if tagged is not None:
        yield Fault(("topics",), f"tags: {text}", tagged)


def pull_sends_no_requests(settings: Settings) -> Iterator[Fault]:
    """Where the service makes the calls, what only a request to it could honour is a mistake, and not passed over."""
    if settings.deliver.mode == "pull":
        text = "is for push mode; in pull mode the service calls the sidecar; leave it out"
        yield from unusual(settings.deliver, REQUESTS, text)


def unusual(deliver: Deliver, names: Sequence[str], text: str) -> Iterator[Fault]:
    """A fault for each of these settings that is not as it is by default."""
    for name in names:
        if (value := getattr(deliver, name)) != Deliver.model_fields[name].default:
            yield Fault(("deliver", name), text, value)
    if deliver.batch.max_size != 1:
        yield Fault(("deliver", "batch", "max_size"), text, deliver.batch.max_size)


def order_can_be_kept(settings: Settings) -> Iterator[Fault]:
    """Order needs one record at a time, which stays where it is until it is answered."""
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


def broadcast_stands_alone(settings: Settings) -> Iterator[Fault]:
    """What every instance gets is pushed, and never waits for a failed one."""
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


def urls_are_local(settings: Settings) -> Iterator[Fault]:
    """Deliveries stay on this machine unless the user says otherwise."""
    deliver = settings.deliver
    for name, url in (("url", deliver.url), ("health_url", deliver.health_url)):
        if url is not None and not deliver.allow_remote and not is_local_url(url):
            text = "is not on loopback; run the sidecar beside the service, or set deliver.allow_remote: true"
            yield Fault(("deliver", name), text, url)


def ladder_fits(settings: Settings) -> Iterator[Fault]:
    """The table rises, and the ladder can be built over it."""
    try:
        build_ladder(settings.retry.ladder, settings.retry.levels)
    except ValueError as error:
        yield Fault(("retry", "ladder"), str(error), given=False)


def names_fit(settings: Settings) -> Iterator[Fault]:
    """Every topic name is one that Kafka takes, and no main topic is one of our own."""
    try:
        build_names(settings.group, settings.topic_names, settings.delays, settings.topic_prefix)
    except ValueError as error:
        yield Fault(("topics",), f"with group {settings.group}: {error}", given=False)


def lock_is_shorter(settings: Settings) -> Iterator[Fault]:
    """A rebalance may not wait until Kafka takes the waiting member for dead."""
    text = settings.kafka.get("max.poll.interval.ms", "")
    limit = int(text) if text.isdecimal() else MAX_POLL_INTERVAL
    if settings.lock_timeout >= limit:
        wait = render_duration(settings.lock_timeout)
        yield Fault(("lock_timeout",), f"must be shorter than kafka's max.poll.interval.ms, {limit} ms", wait)


def api_is_guarded(settings: Settings) -> Iterator[Fault]:
    """An API that others can reach asks for a token."""
    listen = parse_listen(settings.api.listen)
    if listen.path is None and not is_loopback(listen.host) and settings.api.token_file is None:
        yield Fault(("api", "listen"), "is outside loopback, and needs api.token_file", settings.api.listen)


def listeners_differ(settings: Settings) -> Iterator[Fault]:
    """Two listeners cannot share a port, unless the system chooses it."""
    api, probes = settings.listen, settings.probe_listen
    if probes is not None and clash(api, probes):
        text = "is the same as api.listen; null serves the probes there"
        yield Fault(("api", "probe_listen"), text, settings.api.probe_listen)
    for name, other in (("listen", api), ("probe_listen", probes)):
        if settings.ui.enabled and other is not None and clash(settings.ui.place, other):
            yield Fault(("ui", "listen"), f"is the same as api.{name}, and others call that one", settings.ui.listen)


def dashboard_is_guarded(settings: Settings) -> Iterator[Fault]:
    """A dashboard that others can reach asks who they are, and what is done there is written down."""
    ui = settings.ui
    if not ui.enabled:
        return
    if settings.deliver.broadcast:
        yield Fault(("ui", "enabled"), "has no effect in broadcast mode, which retries nothing; leave it out", True)
    if ui.place.path is None and not is_loopback(ui.place.host) and ui.token_file is None:
        yield Fault(("ui", "listen"), "is outside loopback, and needs ui.token_file, and ui.hosts", ui.listen)
    if ui.token_file is not None and ui.audit_file is None:
        text = "is required with ui.token_file: what is done on the dashboard is written there first"
        yield Fault(("ui", "audit_file"), text, given=False)


def clash(one: Listen, other: Listen) -> bool:
    """Whether two listeners want the same socket or port."""
    if one.path is not None or other.path is not None:
        return one.path == other.path
    wild = {"0.0.0.0", "::"}
    return one.port == other.port != 0 and (one.host == other.host or bool(wild & {one.host, other.host}))


CHECKS: tuple[tuple[Check, tuple[KeyPath, ...]], ...] = (
    (url_is_given, (("deliver", "mode"), ("deliver", "url"))),
    (
        relay_delivers_nothing,
        (*(("deliver", name) for name in ("mode", *REQUESTS, "order", "broadcast", "batch")), ("topics",)),
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
    (urls_are_local, (("deliver", "url"), ("deliver", "health_url"), ("deliver", "allow_remote"))),
    (ladder_fits, (("retry", "ladder"), ("retry", "levels"))),
    (names_fit, (("group",), ("topics",), ("topic_prefix",), ("retry", "ladder"), ("retry", "levels"))),
    (lock_is_shorter, (("lock_timeout",), ("kafka",))),
    (api_is_guarded, (("api", "listen"), ("api", "token_file"))),
    (listeners_differ, (("api", "listen"), ("api", "probe_listen"), ("ui", "listen"), ("ui", "enabled"))),
    (
        dashboard_is_guarded,
        (("ui", "enabled"), ("ui", "listen"), ("ui", "token_file"), ("ui", "audit_file"), ("deliver", "broadcast")),
    ),
)


def cross_faults(settings: Settings, wrong: Sequence[KeyPath] = ()) -> list[Fault]:
    """The faults between settings; checks that read one of `wrong` are left out."""
    found: list[Fault] = []
    blind = list(wrong)
    for check, reads in CHECKS:
        if not any(touches(path, read) for path in blind for read in reads):
            faults = list(check(settings))
            found += faults
            blind += [fault.path for fault in faults]
    return found


def touches(one: KeyPath, other: KeyPath) -> bool:
    """Whether one path leads to, or into, the other."""
    short = min(len(one), len(other))
    return one[:short] == other[:short]
