"""Check whether the service can be reached where records would be pushed. No record is sent."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

from sidecar.delivery.push.target import Target, parse_target
from sidecar.doctor.findings import Finding, fail, ok, warn
from sidecar.printable import url_without_secrets
from sidecar.settings.sections.deliver import Deliver

CONNECT_SECONDS = 3.0
HERE = "start the service, or correct deliver.url; doctor must run where the sidecar runs, in its pod"


def service(deliver: Deliver) -> list[Finding]:
    """Report whether deliver.url accepts connections, and what the health URL answers."""
    if deliver.mode != "push":
        return [ok(f"nothing to reach: in {deliver.mode} mode the service comes to the sidecar")]
    findings = list(listening("deliver.url", deliver.url or "", deliver.allow_remote))
    if deliver.health_url is not None:
        findings += health(deliver.health_url, deliver.allow_remote)
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


def health(url: str, allow_remote: bool) -> Iterator[Finding]:
    """Report why the health URL does not say that the service is well."""
    shown = url_without_secrets(url)
    try:
        status = asked(parse_target(url, allow_remote))
    except (ValueError, OSError, http.client.HTTPException) as fault:
        yield fail(f"deliver.health_url: {shown} does not answer: {fault or type(fault).__name__}", HERE)
    else:
        if not 200 <= status < 300:
            yield warn(f"deliver.health_url: {shown} answers {status}: nothing is delivered until it is 2xx", HERE)


def asked(target: Target) -> int:
    """Return the status with which a GET is answered. Raises OSError, HTTPException."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = connect(target)
    try:
        connection.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", target.authority)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


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
