"""The reader of Spark's consumers, without Spark: what it holds at a time does not grow with the records."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import MakeTopic
from tests.support.kafka.bombs import fill
from tests.support.kafka.broker import Broker

COUNT = 30
MOST_MIB = 150
"""Of each record the client makes 7 MB, and Python 8: thirty of them at once are 450 MB."""
READ = r"""
import json, re, sys
from pathlib import Path
from reconsume.spark.consumer.offsets import Range
from reconsume.spark.consumer.brokers import read
client, topic, count = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def peak():
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
before = peak()
rows = [len(row[6]) for row in read(client, [Range(topic, 0, 0, count)])]
print(json.dumps([rows, peak() - before]))
"""


@pytest.mark.long
def test_records_of_many_headers_are_read_a_few_at_a_time(kafka: Broker, make_topic: MakeTopic) -> None:
    topic = make_topic()
    fill(kafka.bootstrap, topic, ["headers"] * COUNT)
    client = json.dumps({"bootstrap.servers": kafka.bootstrap})
    command = [sys.executable, "-c", READ, client, topic, str(COUNT)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120, check=True)
    rows, grown = json.loads(done.stdout)
    assert rows == [99_980] * COUNT
    assert grown < MOST_MIB, f"{grown:.0f} MiB"
