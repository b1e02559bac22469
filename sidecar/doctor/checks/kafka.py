"""Check whether Kafka can be reached.

Each kind of refusal is reported separately, since each is corrected elsewhere.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from reconsume.sidecar.doctor.findings import Finding, fail, listed, ok, warn
from reconsume.sidecar.kafka.credentials.reachability import Unreachable, answers, listed_in

CONNECT_SECONDS = 2.0
PLAIN_PORT = 9092


def reach(kafka: Mapping[str, str]) -> list[Finding]:
    """Report whether a broker answers, and whether all brokers that it names can be connected to."""
    brokers = answers(kafka)
    if isinstance(brokers, Unreachable):
        return [fail(brokers.finding, brokers.mend)]
    return [
        ok(f"{len(brokers)} {'broker answers' if len(brokers) == 1 else 'brokers answer'}"),
        *addresses(kafka, brokers),
    ]


def addresses(kafka: Mapping[str, str], brokers: Iterable[str]) -> Iterable[Finding]:
    """Report wrong addresses among those that the brokers advertise, and among the configured ones."""
    away = [address for address in brokers if not connects(address)]
    if away:
        yield fail(
            f"brokers name addresses that cannot be connected to from here: {listed(away)}",
            "advertised.listeners of these brokers must be reachable from where the sidecar runs",
        )
    servers = listed_in(kafka["bootstrap.servers"])
    dead = [address for address in servers if address not in away and not connects(address)]
    if dead:
        yield warn(
            f"bootstrap.servers has addresses where nobody answers: {listed(dead)}", "take them out, or repair them"
        )


def connects(address: str) -> bool:
    """Whether `host:port` accepts connections."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        host, port = address.rpartition("://")[2], str(PLAIN_PORT)
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
