"""Take messages from the client a few at a time: how much they weigh is known only when they are there.

The client parses the headers of all messages that one call returns. 100 000 headers, which take 300 KB in a topic, take
7 MB there, and up to 20 MB as Python's objects. So a reader looks at each message and lets it go before it asks for
more.
"""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Consumer, Message

TOGETHER = 4
"""Messages that one call may return. A call for 4 costs a message 0.15 us more than one for 500, one for 1 costs 0.8
us."""
MOST, HEAVY = 500, 1024 * 1024
"""Messages in a turn of a follower, and bytes of their keys and values. JSON takes twenty times as much once parsed."""


def few_messages(consumer: Consumer, wait: float) -> Iterator[list[Message]]:
    """Yield what the client has, a few messages at a time; nothing if no message comes within `wait` seconds.

    The caller may stop after each of the lists. Whoever reads headers takes each message out of its list before.
    """
    # consume(500, t) waits its full time even if records are there: +24 ms at low rates. So they come at once.
    messages = consumer.consume(1, wait)
    while messages:
        yield messages
        messages = consumer.consume(TOGETHER, 0)


def next_messages(consumer: Consumer, wait: float, most: int = MOST, at_once: int = 1) -> Iterator[Message]:
    """Yield the next messages one by one, `most` at most: what there is for one turn of a follower.

    Nothing if no message comes within `wait` seconds. A sidecar has followers beside its lanes, so each takes no more
    than one message at a time. Only who reads as much as a lane takes some `at_once`; it must not stop in between.
    """
    count = weight = 0
    messages = consumer.consume(1, wait)
    while messages:
        messages.reverse()
        while messages:
            message = messages.pop()
            count, weight = count + 1, weight + len(message.key() or b"") + len(message.value() or b"")
            yield message
            del message
        messages = consumer.consume(at_once, 0) if count < most and weight < HEAVY else []
