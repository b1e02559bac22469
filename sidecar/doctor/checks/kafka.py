"""Whether Kafka can be reached: every kind of refusal told apart, since each is mended in another place."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from sidecar.doctor.findings import Finding, fail, listed, ok, warn
from sidecar.kafka.credentials.reachability import Unreachable, answers, listed_in

CONNECT_SECONDS = 2.0
PLAIN_PORT = 9092


def reach(kafka: Mapping[str, str]) -> list[Finding]:
    """Whether a broker answers, and whether all that it names can be connected to."""
    brokers = answers(kafka)
    if isinstance(brokers, Unreachable):
        return [fail(brokers.finding, brokers.mend)]
    return [
        ok(f"{len(brokers)} {'broker answers' if len(brokers) == 1 else 'brokers answer'}"),
        *addresses(kafka, brokers),
    ]


def addresses(kafka: Mapping[str, str], brokers: Iterable[str]) -> Iterable[Finding]:
    """What is wrong with the addresses that the brokers advertise, and with those that we were given."""
    away = [address for address in brokers if not connects(address)]
    if away:
        yield fail(
            f"brokers name addresses that cannot be connected to from here: {listed(away)}",
            "advertised.listeners of these brokers must be reachable from where the sidecar runs",
        )
    given = listed_in(kafka["bootstrap.servers"])
    dead = [address for address in given if address not in away and not connects(address)]
    if dead:
        yield warn(
            f"bootstrap.servers has addresses where nobody answers: {listed(dead)}", "take them out, or mend them"
        )


def connects(address: str) -> bool:
    """Whether somebody takes connections at `host:port`."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        host, port = address.rpartition("://")[2], str(PLAIN_PORT)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
