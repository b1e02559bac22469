"""One class of callers that floods a sidecar, as a process of its own: 64 connections that call without a pause.

Every other call hangs up as soon as it is sent, and the next connection is opened at once: what a caller costs is then
the work, and not the connection. Prints how often which answer came, as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import NamedTuple

from confluent_kafka import Producer

from tests.support.sidecar.running_api import Client

CONNECTIONS = 64
PRODUCERS = 4
PRODUCED_EACH, PRODUCED_EVERY = 50, 0.05
"""Records of a producer at a time, and the seconds to its next ones: 4 MB/s of all together, so that disks last."""
SERVICE_TOKEN, OPERATOR_TOKEN = "the-token-of-the-service", "the-token-of-an-operator"


class Place(NamedTuple):
    """Where the sidecar is: the ports of its API and of its dashboard, Kafka, and the topics to write to."""

    api: int
    ui: int
    bootstrap: str
    topics: Sequence[str]


class Request(NamedTuple):
    """One call of a flood."""

    method: str
    path: str
    body: str = ""
    form: bool = False


def service_calls() -> list[Request]:
    """What a service may ask for."""
    return [
        Request("POST", "/v1/receive", '{"max": 1, "wait": "20s"}'),
        Request("POST", "/v1/ack", '{"handles": ["not-a-handle"]}'),
        Request("POST", "/v1/nack", '{"handles": ["not-a-handle"]}'),
        Request("POST", "/v1/retry", "{}"),
        Request("GET", "/status"),
        Request("GET", "/metrics"),
    ]


def operator_calls() -> list[Request]:
    """What an operator may ask for. A hold of a key that no record has, for a second."""
    return [
        Request("DELETE", "/v1/holds/x"),
        Request("POST", "/v1/holds", '{"key": "nobody", "for": "1s", "why": "a flood"}'),
        Request("POST", "/v1/settle", '{"id": "orders:0:1", "how": "done", "why": "a flood"}'),
        Request("GET", "/v1/holds"),
        Request("GET", "/v1/view/messages"),
    ]


def pages() -> list[Request]:
    """What somebody who has not signed in may ask of the dashboard."""
    paths = (
        "/",
        "/records",
        "/dlq",
        "/find?text=orders",
        "/policy",
        "/instances",
        "/record/journey?id=x:0:1",
        "/holds",
    )
    guess = Request("POST", "/sign-in", "who=mallory&token=a-guess-that-is-long-enough", form=True)
    return [*(Request("GET", path) for path in paths), guess]


CALLERS: Mapping[str, tuple[str, str, Callable[[], list[Request]]]] = {
    "service": ("api", SERVICE_TOKEN, service_calls),
    "nobody": ("api", "", lambda: [*operator_calls(), *service_calls()]),
    "service as operator": ("api", SERVICE_TOKEN, operator_calls),
    "operator": ("api", OPERATOR_TOKEN, operator_calls),
    "visitor": ("ui", "", pages),
}
"""Each class of callers: whom it calls, with which token, and for what."""


def rendered(request: Request, port: int, token: str) -> bytes:
    """The request as bytes."""
    kind = "application/x-www-form-urlencoded" if request.form else "application/json"
    lines = [f"{request.method} {request.path} HTTP/1.1", f"Host: 127.0.0.1:{port}"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    if request.body:
        lines += [f"Content-Type: {kind}", f"Content-Length: {len(request.body)}", f"Origin: http://127.0.0.1:{port}"]
    return "\r\n".join([*lines, "", request.body]).encode()


def call(port: int, token: str, requests: Iterator[Request], end: float, answers: Counter[str]) -> None:
    """Call without a pause, and hang up every other time."""
    for hang_up in cycle((True, False)):
        if time.monotonic() > end:
            return
        try:
            with Client(port) as client:
                client.send(rendered(next(requests), port, token))
                if not hang_up:
                    answers[str(client.answer().status)] += 1
        except OSError as failure:
            answers[type(failure).__name__] += 1


def produce(place: Place, end: float) -> None:
    """Write to every topic of the group what no reader can use."""
    producer = Producer({"bootstrap.servers": place.bootstrap, "log_level": 2, "linger.ms": 5})
    junk = cycle((b"", b"{", b"x" * 20_000, b'{"v": 1, "all": true}', b"[" * 2_000))
    keys = cycle((b"hold/x", b"instance/x", b"", b"policy", None))
    while time.monotonic() < end:
        for topic in place.topics:
            for _ in range(PRODUCED_EACH // len(place.topics) + 1):
                headers = [("RETRY_TIMES", b"1"), ("ORIGIN_MESSAGE_ID", b"orders:0:1")]
                producer.produce(topic, next(junk), next(keys), headers=headers)
        producer.poll(PRODUCED_EVERY)
        time.sleep(PRODUCED_EVERY)
    producer.flush(10)


def main(who: str, seconds: int, place: Place) -> None:
    """Flood for so many seconds."""
    end, answers = time.monotonic() + seconds, Counter[str]()
    if who == "producer":
        threads = [threading.Thread(target=produce, args=(place, end)) for _ in range(PRODUCERS)]
    else:
        where, token, requests = CALLERS[who]
        port, calls = getattr(place, where), requests()
        threads = [
            threading.Thread(target=call, args=(port, token, cycle(calls[n % len(calls) :] + calls), end, answers))
            for n in range(CONNECTIONS)
        ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(answers))  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Place(int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6].split(",")))
