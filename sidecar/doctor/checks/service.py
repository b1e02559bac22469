"""Check whether the service can be reached where records would be pushed, and what it answers to a made-up record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from reconsume.sidecar.core.outcome import Failed, NotSent, label_of
from reconsume.sidecar.core.pace.refusals import CLIENT_ERROR, hint_of
from reconsume.sidecar.delivery.push.access import Access, ServiceCredentials, build_credentials, health_access
from reconsume.sidecar.delivery.push.target import parse_target
from reconsume.sidecar.doctor.findings import Finding, fail, ok, warn
from reconsume.sidecar.doctor.service_call import asked_health, tried
from reconsume.sidecar.doctor.service_tls import certificate, clock, connect
from reconsume.sidecar.masking import url_without_secrets
from reconsume.sidecar.settings.deliver import Deliver, Subscription
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.reasons import reason_text

HERE = "start the service, or correct deliver.url; doctor must run where the sidecar runs, in its pod"

PAGE = "a proxy in between may want a login: correct deliver.url"
ANSWERS = "the page 'What your service sees' of the documentation says what a response means"
EVERY = frozenset({"http-401", "http-403", "http-404", "http-405", "http-415"})
"""Classes of a failure that every record would meet: the hint says what to do."""
WRONG_PLACE: Mapping[str, str] = {
    "http-501": "what is there takes no POST, and every record would fail",
    "unreadable-verdict": "the answer says that it is JSON and cannot be read, or its verdict is none of ours",
    "broken-answer": "the answer is no whole HTTP answer",
    "timeout": "no answer came in time",
}
"""Reasons of a failure that have nothing to do with what is in a record."""


def service(deliver: Deliver) -> list[Finding]:
    """Report whether deliver.url accepts connections, and what the health URL answers."""
    if deliver.mode != "push":
        return [ok(f"nothing to reach: in {deliver.mode} mode the service comes to the sidecar")]
    credentials = build_credentials(deliver)
    findings = list(listening("deliver.url", deliver.url or "", deliver, credentials))
    if deliver.health_url is not None:
        findings += health(deliver.health_url, deliver, credentials)
    well = [] if findings else [ok(f"it takes connections at {url_without_secrets(deliver.url or '')}")]
    if well and credentials.current.secrets:
        well.append(time_of_signatures(deliver, credentials))
    return findings or well


def listening(key: str, url: str, deliver: Deliver, credentials: ServiceCredentials) -> Iterator[Finding]:
    """Yield a failure unless the URL accepts connections, and what is wrong with its certificate."""
    shown = url_without_secrets(url)
    try:
        target = parse_target(url, deliver.allow_remote)
        connection = connect(target)
        context = credentials.current.context
        if target.tls_name and context is not None:
            yield from certificate(f"{key}: {shown}", connection, context, target.tls_name)
        connection.close()
    except ValueError as fault:
        yield fail(f"{key}: {fault}")
    except OSError as fault:
        yield fail(f"{key}: {shown} cannot be connected to: {fault.strerror or fault}", HERE)


def time_of_signatures(deliver: Deliver, credentials: ServiceCredentials) -> Finding:
    """Return whether the service's clock lets it accept signatures: by its health URL, else by OPTIONS."""
    url, method = (deliver.url or "", "OPTIONS") if deliver.health_url is None else (deliver.health_url, "GET")
    target = parse_target(url, deliver.allow_remote)
    return clock(target, credentials.current.context if target.tls_name else None, method)


def health(url: str, deliver: Deliver, credentials: ServiceCredentials) -> Iterator[Finding]:
    """Report why the health URL does not say that the service is well, by the way that the sidecar asks."""
    shown = url_without_secrets(url)
    try:
        target = parse_target(url, deliver.allow_remote)
        access = health_access(credentials, parse_target(deliver.url or "", deliver.allow_remote), target)
        outcome = asked_health(target, deliver.health_timeout, access)
    except ValueError as fault:
        yield fail(f"deliver.health_url: {fault}", HERE)
        return
    if isinstance(outcome, NotSent):
        yield fail(f"deliver.health_url: {shown} does not answer: {outcome.reason}", HERE)
    elif isinstance(outcome, Failed):
        said = outcome.reason.removeprefix("http-")
        text = f"deliver.health_url: {shown} answers {said}: nothing is delivered until it is well"
        yield (fail if outcome.reason == "timeout" else warn)(text, HERE)


def delivered_to_each(settings: Settings) -> list[Finding]:
    """Report what the service answers to a made-up record of the first topic, and of each with a path of its own."""
    findings = []
    tries = {(topic.path, topic.content_type): topic for topic in reversed(settings.topics)}
    for topic in sorted(tries.values(), key=settings.topics.index):
        for one in delivered(settings, topic):
            findings.append(one if len(tries) == 1 else replace(one, finding=f"{topic.name}: {one.finding}"))
    return findings


def delivered(settings: Settings, topic: Subscription) -> list[Finding]:
    """Report what the service answers to a made-up record of a topic, which says by a header that it is a trial."""
    deliver = settings.deliver
    if deliver.mode != "push":
        return [ok(f"nothing to try: in {deliver.mode} mode the service comes to the sidecar")]
    try:
        target = parse_target(deliver.url or "", deliver.allow_remote)
    except ValueError as fault:
        return [fail(f"deliver.url: {fault}", HERE)]
    target = target if topic.path is None else replace(target, path=topic.path)
    outcome, html = tried(target, settings, topic, Access(build_credentials(deliver)))
    if html:
        return [warn("the made-up record was answered with a page of HTML, and counts as done", PAGE)]
    match outcome:
        case NotSent(reason=reason):
            return [fail(f"the made-up record could not be sent: {reason}", HERE)]
        case Failed(asked=False, reason=reason) if reason in EVERY:
            text = f"the made-up record was answered {reason_text(reason, outcome.text)}: every record would fail"
            return [fail(text, hint_of(int(reason.removeprefix("http-"))))]
        case Failed(asked=False, reason=reason) if CLIENT_ERROR.fullmatch(reason):
            text = f"the made-up record was answered {reason_text(reason, outcome.text)}: a retry for a real one"
            hint = hint_of(int(reason.removeprefix("http-")))
            return [warn(text, f"a response that finds fault with the value alone is right; otherwise {hint}")]
        case Failed(asked=False, reason=reason) if reason in WRONG_PLACE:
            return [fail(f"the made-up record was answered {reason}: {WRONG_PLACE[reason]}", ANSWERS)]
        case Failed(asked=False, reason=reason):
            text = f"the made-up record was answered {reason}: a retry for a real one"
            return [warn(text, "an answer that finds fault with the value alone is right; else: " + ANSWERS)]
        case _:
            return [ok(f"the made-up record was answered: {label_of(outcome)}")]
