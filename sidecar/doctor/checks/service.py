"""Check whether the service can be reached where records would be pushed, and what it answers to a made-up record."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

from sidecar.core.outcome import Failed, NotSent, label_of
from sidecar.delivery.push.target import Target, parse_target
from sidecar.doctor.findings import Finding, fail, ok, warn
from sidecar.doctor.service_call import asked_health, tried
from sidecar.masking import url_without_secrets
from sidecar.settings.sections.deliver import Deliver

CONNECT_SECONDS = 3.0
HERE = "start the service, or correct deliver.url; doctor must run where the sidecar runs, in its pod"

ANSWERS = "see docs/service.md for what an answer means"
WRONG_PLACE: Mapping[str, str] = {
    "http-401": "the service wants a login, and every record would fail",
    "http-403": "the service refuses this caller, and every record would fail",
    "http-404": "nothing is at that path, and every record would fail",
    "http-405": "what is there takes no POST, and every record would fail",
    "http-415": "it does not take this content type; see deliver.envelope, and the record's header content-type",
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
    findings = list(listening("deliver.url", deliver.url or "", deliver.allow_remote))
    if deliver.health_url is not None:
        findings += health(deliver.health_url, deliver)
    return findings or [ok(f"it takes connections at {url_without_secrets(deliver.url or '')}")]


def listening(key: str, url: str, allow_remote: bool) -> Iterator[Finding]:
    """Yield a failure unless the URL accepts connections."""
    shown = url_without_secrets(url)
    try:
        connect(parse_target(url, allow_remote)).close()
    except ValueError as fault:
        yield fail(f"{key}: {fault}")
    except OSError as fault:
        yield fail(f"{key}: {shown} cannot be connected to: {fault}", HERE)


def health(url: str, deliver: Deliver) -> Iterator[Finding]:
    """Report why the health URL does not say that the service is well, by the way that the sidecar asks."""
    shown = url_without_secrets(url)
    try:
        outcome = asked_health(parse_target(url, deliver.allow_remote), deliver.health_timeout)
    except ValueError as fault:
        yield fail(f"deliver.health_url: {fault}", HERE)
        return
    if isinstance(outcome, NotSent):
        yield fail(f"deliver.health_url: {shown} does not answer: {outcome.reason}", HERE)
    elif isinstance(outcome, Failed):
        said = outcome.reason.removeprefix("http-")
        text = f"deliver.health_url: {shown} answers {said}: nothing is delivered until it is well"
        yield (fail if outcome.reason == "timeout" else warn)(text, HERE)


def delivered(deliver: Deliver, group: str, topic: str) -> list[Finding]:
    """Report what the service answers to a made-up record, which says by a header that it is a trial."""
    if deliver.mode != "push":
        return [ok(f"nothing to try: in {deliver.mode} mode the service comes to the sidecar")]
    try:
        target = parse_target(deliver.url or "", deliver.allow_remote)
    except ValueError as fault:
        return [fail(f"deliver.url: {fault}", HERE)]
    outcome = tried(target, deliver, group, topic)
    match outcome:
        case NotSent(reason=reason):
            return [fail(f"the made-up record could not be sent: {reason}", HERE)]
        case Failed(asked=False, reason=reason) if reason in WRONG_PLACE:
            return [fail(f"the made-up record was answered {reason}: {WRONG_PLACE[reason]}", ANSWERS)]
        case Failed(asked=False, reason=reason):
            text = f"the made-up record was answered {reason}: a retry for a real one"
            return [warn(text, "an answer that finds fault with the value alone is right; else: " + ANSWERS)]
        case _:
            return [ok(f"the made-up record was answered: {label_of(outcome)}")]


def connect(target: Target) -> socket.socket:
    """Return a connection to the target, at the first of its addresses that accepts one. Raises OSError."""
    if target.socket_path:
        unix = socket.socket(socket.AF_UNIX)
        unix.settimeout(CONNECT_SECONDS)
        try:
            unix.connect(target.socket_path)
        except OSError:
            unix.close()
            raise
        return unix
    refused: tuple[object, ...] = ()
    for host in target.hosts:
        try:
            return socket.create_connection((host, target.port), CONNECT_SECONDS)
        except OSError as fault:
            refused = refused or fault.args
    raise OSError(*(refused or ("no address",)))
