"""What a client of Spark Connect can import and send: it has neither py4j nor the parts of PySpark that need it.

No more is tried, as PySpark asks for `grpcio` as soon as a session or a function is made.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.python_path import python_path

CLIENT = """
import sys

sys.modules |= dict.fromkeys(("py4j", "pyspark.core", "pyspark.sql.classic"))  # an import of these raises
from pyspark import cloudpickle
from pyspark.util import is_remote_only

assert is_remote_only()
from reconsume.spark import consumer, session, tables, upsert, view

kafka = {"bootstrap.servers": "nosuch.invalid:9092"}
rules = consumer.build_rules("billing", ["orders"], name="ship")
follow = consumer.PolicyFollower(rules, kafka).rules
assert callable(cloudpickle.loads(cloudpickle.dumps(follow)))  # as Connect sends it to the server
"""


def test_all_that_a_consumer_needs_works_in_a_client_of_spark_connect() -> None:
    environ = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, "-c", CLIENT], env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
