"""The fixture `sidecar`: a real Kafka and the real sidecar beside the service under test, 1000 times as fast."""

import json
import subprocess
import threading

import orders
import pytest


class Sidecar:
    def __init__(self, url):
        words = ["-c", "reconsume.yaml", "--set", f"deliver.url={url}", "--speed", "1000", "-o", "jsonl"]
        self.process = subprocess.Popen(["reconsume", "dev", "up", *words], stdout=subprocess.PIPE, text=True)
        self.links = {}
        while "log" not in self.links:  # the last of its lines
            line = self.process.stdout.readline()
            assert line, "reconsume dev up has ended; its messages are on stderr"
            row = json.loads(line)
            self.links[row["what"]] = row["where"]

    def run(self, *words):
        """Run a command for this group and return its first line of data; an assertion fails with what it printed."""
        command = ["reconsume", *words, "-c", self.links["configuration"], "-o", "jsonl"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[0]) if done.stdout else {}

    def produce(self, topic, value, *options):
        """Write a record and return its id."""
        return self.run("dev", "produce", topic, value, *options)["id"]

    def expect(self, record, *options):
        self.run("dev", "expect", record, *options)

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


@pytest.fixture(scope="session")
def sidecar():
    service = orders.server()
    threading.Thread(target=service.serve_forever, daemon=True).start()
    running = Sidecar(f"http://127.0.0.1:{service.server_port}/events")
    yield running
    running.stop()
    service.shutdown()
