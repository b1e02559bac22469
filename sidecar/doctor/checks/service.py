"""Check the service: whether it can be reached where records would be pushed, and what it answers to a made-up record.

It is called as the sidecar calls it, by its own push client, with its connections, timeouts and verdicts. Its
certificate is looked at by a connection of our own, because the push client does not keep it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from reconsume.sidecar.clock import now
from reconsume.sidecar.core.outcome import Failed, NotSent, Outcome, label_of
from reconsume.sidecar.core.pace.refusals import CLIENT_ERROR, hint_of
from reconsume.sidecar.core.record import Now, Record
from reconsume.sidecar.delivery.push.access import Access, ServiceCredentials, build_credentials, health_access
from reconsume.sidecar.delivery.push.dial import REFUSED, tls_reason
from reconsume.sidecar.delivery.push.health_check import by_status
from reconsume.sidecar.delivery.push.pool import Push
from reconsume.sidecar.delivery.push.settings import PushSettings
from reconsume.sidecar.delivery.push.target import Target, parse_target
from reconsume.sidecar.delivery.push.trial import deliver_once, made_up_record
from reconsume.sidecar.delivery.verdict import HTML
from reconsume.sidecar.doctor.findings import Finding, fail, ok, warn
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.kafka.listed_records import read_main_record
from reconsume.sidecar.settings.deliver import Deliver
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.masking import url_without_secrets
from reconsume.topics.reasons import reason_text

# --- its address -----------------------------------------------------------------------------------------------------


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
    return findings or [ok(f"it takes connections at {url_without_secrets(deliver.url or '')}")]


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


def delivered_to_each(settings: Settings, ident: str | None = None) -> list[Finding]:
    """Report what the service answers to a made-up record of the first topic, and of each with a path of its own.

    `ident`: the id of a record in a main topic, whose key, value and headers are delivered instead, once. Raises
    RecordError if there is no such record, and BrokerError.
    """
    if ident is not None:
        record = read_main_record(settings.kafka, settings.group, settings.topic_names, ident, settings.drains)
        trial = made_up_record(record.main_topic, record.key, record.value, record.headers)
        return delivered(settings, trial, f"a trial with {ident}")
    findings = []
    mains = [topic for topic in settings.topics if topic.drains is None]
    tries = {(topic.path, topic.content_type): topic for topic in reversed(mains)}
    for topic in sorted(tries.values(), key=settings.topics.index):
        for one in delivered(settings, made_up_record(topic.name, None, TRIAL_VALUE)):
            findings.append(one if len(tries) == 1 else replace(one, finding=f"{topic.name}: {one.finding}"))
    return findings


def delivered(settings: Settings, record: Record, what: str = "the made-up record") -> list[Finding]:
    """Report what the service answers to a record, whose request says by a header that it is a trial."""
    deliver = settings.deliver
    if deliver.mode != "push":
        return [ok(f"nothing to try: in {deliver.mode} mode the service comes to the sidecar")]
    try:
        _, outcome, odd = deliver_once(settings, record, marked=True, longest_ms=LONGEST)
    except ConfigError as fault:
        return [fail(str(fault), HERE)]
    if HTML in odd:
        return [warn(f"{what} was answered with a page of HTML, and counts as done", PAGE)]
    match outcome:
        case NotSent(reason=reason):
            return [fail(f"{what} could not be sent: {reason}", HERE)]
        case Failed(asked=False, reason=reason) if reason in EVERY:
            text = f"{what} was answered {reason_text(reason, outcome.text)}: every record would fail"
            return [fail(text, hint_of(int(reason.removeprefix("http-"))))]
        case Failed(asked=False, reason=reason) if CLIENT_ERROR.fullmatch(reason):
            text = f"{what} was answered {reason_text(reason, outcome.text)}: a retry for a real one"
            hint = hint_of(int(reason.removeprefix("http-")))
            return [warn(text, f"a response that finds fault with the value alone is right; otherwise {hint}")]
        case Failed(asked=False, reason=reason) if reason in WRONG_PLACE:
            return [fail(f"{what} was answered {reason}: {WRONG_PLACE[reason]}", ANSWERS)]
        case Failed(asked=False, reason=reason):
            text = f"{what} was answered {reason}: a retry for a real one"
            return [warn(text, "an answer that finds fault with the value alone is right; else: " + ANSWERS)]
        case _:
            return [ok(f"{what} was answered: {label_of(outcome)}")]


# --- its certificate -------------------------------------------------------------------------------------------------


CONNECT_SECONDS = 3.0
ALERT_SECONDS = 0.5
"""Under TLS 1.3 a service refuses our certificate behind its own part of the handshake."""
DAY = 86_400
SOON_DAYS = 14
"""Days before its end at which a certificate should have been renewed. Those of ACME are renewed 30 days before it."""
CAUSES: Mapping[str, tuple[str, str]] = {
    "tls-untrusted": (
        "its certificate is not trusted: its CA is not known here",
        "deliver.tls.ca_file must hold the CA of the service's certificate",
    ),
    "tls-expired": ("its certificate has expired", "renew it, or look at the clock of this machine"),
    "tls-not-yet-valid": ("its certificate is not valid yet", "look at the clocks of this machine and of the CA"),
    "tls-wrong-name": ("its certificate is for another name", "use a name in the URL that is in the certificate"),
    REFUSED: (
        "it does not accept our certificate, or wants one",
        "deliver.tls.cert_file must hold a certificate of a CA that the service trusts, and that has not expired",
    ),
}
HANDSHAKE = (
    "the TLS handshake fails",
    "the port may have no TLS, or the service may want a certificate: deliver.tls.cert_file",
)


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


def certificate(where: str, plain: socket.socket, context: ssl.SSLContext, name: str) -> Iterator[Finding]:
    """Yield what is wrong with the service's certificate or ours, and what will be soon. Closes the connection.

    `where`: the setting and its URL, as the beginning of a sentence; `name`: what the certificate must be for.
    """
    try:
        with context.wrap_socket(plain, server_hostname=name) as secure:
            rest = ssl.cert_time_to_seconds(str((secure.getpeercert() or {})["notAfter"])) - time.time()
            if rest < SOON_DAYS * DAY:
                yield warn(f"{where}: its certificate expires in {rest / DAY:.0f} days", "renew it")
            secure.settimeout(ALERT_SECONDS)
            secure.recv(1)
    except TimeoutError:  # nothing is said: our certificate is accepted, or none is wanted
        return
    except OSError as fault:
        cause, mend = CAUSES.get(tls_reason(fault), HANDSHAKE)
        yield fail(f"{where}: {cause}", mend)
    finally:
        plain.close()


# --- calls -----------------------------------------------------------------------------------------------------------


TRIAL_VALUE = b'{"reconsume": "trial"}'
LONGEST = 15_000
"""ms that a trial may take: a person waits for it."""
SLACK = 5.0
"""Seconds beyond the client's own deadline."""


def asked_health(target: Target, timeout: int, access: Access) -> Outcome:
    """Return what the health URL's answer means. `timeout`: ms; `access`: how it is called."""
    request = f"GET {target.path} HTTP/1.1\r\nHost: {target.authority}\r\nAccept: */*\r\n\r\n".encode("ascii")
    push = PushSettings("", timeout, connect_timeout_ms=timeout)
    return asyncio.run(_health_answer(target, push, request, access))


async def _health_answer(target: Target, settings: PushSettings, request: bytes, access: Access) -> Outcome:
    result: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def reply(_question: None, outcome: Outcome, _at: Now) -> None:
        if not result.done():
            result.set_result(outcome)

    push = Push(target, settings, now, access)
    push.post((None, reply), request, by_status)
    try:
        return await asyncio.wait_for(result, settings.timeout_ms / 1_000 + SLACK)
    except TimeoutError:
        return NotSent("timeout")
    finally:
        push.close()
