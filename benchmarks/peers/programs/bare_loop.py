"""A loop as a user writes it: confluent-kafka takes, requests or httpx delivers, a failure waits in place.

At least once as librdkafka describes it: an offset is stored after its record is done, and committed every 5 s.
"""

import sys
import time

from confluent_kafka import Consumer


def poster(library):
    """A function that posts a body over a kept connection and returns the status."""
    if library == "httpx":
        import httpx

        client = httpx.Client()
        return lambda url, body: client.post(url, content=body).status_code
    import requests

    session = requests.Session()
    return lambda url, body: session.post(url, data=body).status_code


def consume(library, bootstrap, topic, group, url, delay):
    """Deliver records until the process is ended."""
    post = poster(library)
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"enable.auto.offset.store": False})
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        while post(url, message.value()) >= 400:
            time.sleep(float(delay))
        consumer.store_offsets(message)


if __name__ == "__main__":
    consume(*sys.argv[1:])
