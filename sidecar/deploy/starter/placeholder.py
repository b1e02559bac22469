"""The program that stands where the user's service will be: it takes every record that begins with `{`."""

from __future__ import annotations

from urllib.parse import urlsplit

from reconsume.sidecar.deploy.starter.configuration import PULL, RELAY, SPARK, Answers
from reconsume.topics.masking import url_without_secrets

IMAGE = "python:3.13-slim-trixie"
"""The base of the sidecar's own image, so that it is often on the machine already."""
COMMENTS = {
    "push": "A placeholder for your service: it takes records that begin with { and fails the others.",
    PULL: "A placeholder for your service: it asks for records, takes those that begin with { and retries the others.",
    RELAY: "A placeholder for your service, which reads Kafka itself. This one only waits: put yours here.",
}
"""What stands above the placeholder in each mode."""
PUSH_PROGRAM = """\
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if body.startswith(b"{") else 500)
        self.send_header("Content-Length", "0")
        self.end_headers()

ThreadingHTTPServer(("HOST", PORT), Service).serve_forever()
"""
PULL_PROGRAM = """\
import base64, json, time
from urllib.request import Request, urlopen

def call(name, body):
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"http://127.0.0.1:8471/v1/{name}", json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)

while True:
    try:
        for record in call("receive", {"max": 10, "invisible": "30s", "wait": "10s"})["records"]:
            if base64.b64decode(record["value_base64"] or "").startswith(b"{"):
                call("ack", {"handles": [record["handle"]]})
            else:
                call("reconsume-later", {"handles": [record["handle"]], "reason": "no-json"})
    except OSError as error:
        print(f"the sidecar does not answer: {error}", flush=True)
        time.sleep(1)
"""
RELAY_PROGRAM = """\
import time

while True:
    time.sleep(60)
"""


def placeholder(answers: Answers) -> str:
    """Return the program, which needs nothing but Python."""
    if answers.mode == PULL:
        return PULL_PROGRAM
    if answers.mode == RELAY:
        return RELAY_PROGRAM
    host, port = address_of(answers)
    return PUSH_PROGRAM.replace("HOST", host).replace("PORT", str(port))


def address_of(answers: Answers) -> tuple[str, int]:
    """Return the host and port of the service in push mode."""
    url = urlsplit(answers.url)
    return url.hostname or "", url.port or 80


def placeholder_faults(answers: Answers) -> list[str]:
    """Return a sentence if no placeholder can be made: for a service at this address, or for Spark queries."""
    if answers.mode == SPARK:
        return [
            "deliver.mode = spark: Spark queries have no sidecar and no pod here; leave out --compose and --kubernetes"
        ]
    if answers.mode == "push" and (answers.url.startswith("unix:") or ":" in address_of(answers)[0]):
        text = "a placeholder is made for a service at 127.0.0.1 or localhost; leave out --compose and --kubernetes"
        return [f"deliver.url = {url_without_secrets(answers.url)[:60]}: {text}"]
    return []
