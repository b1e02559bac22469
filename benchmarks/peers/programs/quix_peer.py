"""Quix Streams: it has no retry, and a handler that raises ends the application. So a failure waits in place."""

import sys
import time

import requests
from quixstreams import Application


def consume(bootstrap, topic, group, url, delay):
    """Deliver records until the process is ended."""
    session = requests.Session()

    def deliver(body):
        while session.post(url, data=body).status_code >= 400:
            time.sleep(float(delay))

    app = Application(bootstrap, consumer_group=group, auto_offset_reset="earliest", loglevel="WARNING")
    app.dataframe(app.topic(topic, value_deserializer="bytes")).update(deliver)
    app.run()


if __name__ == "__main__":
    consume(*sys.argv[1:])
