"""Run the job: from start to stop."""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from prometheus_client import make_wsgi_app, start_http_server

from reconsume.spark.errors import GoneError, TakenError
from reconsume.spark.java import end, end_java, java_process, raising_gone, start_anew, submitted, versions
from reconsume.spark.job.answers import Answers
from reconsume.spark.job.cluster import Cluster
from reconsume.spark.job.display import say, shown
from reconsume.spark.job.java_log import log_options
from reconsume.spark.job.listener import Listener
from reconsume.spark.job.liveness import Liveness, with_livez
from reconsume.spark.job.meters import Meters
from reconsume.spark.job.positions import ReadPositions
from reconsume.spark.job.queries import QUERIES, Queries
from reconsume.spark.job.reading import kept_consumers
from reconsume.spark.job.sole_use import claim
from reconsume.spark.job.supervisor import Streak, Supervisor
from reconsume.spark.options import Run
from reconsume.spark.session import build, java_folder

LOCAL = "local[16]"
"""The master, unless one is given or spark-submit started this process. It has more threads than a machine has cores,
because tasks of many partitions wait for answers of the brokers; a job of few groups uses two (`reading.tasks_of`)."""
FIRST_SECONDS = 30.0
"""Seconds that the sums wait at most for the view's first batch.

In that batch code is compiled. Two queries at once would each take twice as long.
"""
SETTINGS = {
    "spark.log.level": "ERROR",
    # Java raises its limit of open files to the hard one.
    "spark.kafka.consumer.cache.capacity": str(kept_consumers(resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    # Each query has its own pool: the view's tasks do not wait behind those of the slow queries.
    "spark.scheduler.mode": "FAIR",
    # With the waits of a stop (`running_query`, `java`) and a request that may be under way, it is less than 20 s from
    # SIGTERM to the end.
    "spark.sql.streaming.stopTimeout": "4s",
    # The code that Spark generates is then the same for any number of topics. Else Java compiles it anew
    # when one of a few groups comes or goes.
    "spark.sql.optimizer.inSetConversionThreshold": "0",
    # With the default of 10 s, the metric of the last progress is up to 10 s old while nothing happens.
    "spark.sql.streaming.noDataProgressEventInterval": "5s",
}


class StopSignal:
    """The supervisor's clock, and the request to stop that a signal sets."""

    def __init__(self) -> None:
        self._stop = threading.Event()

    def listen(self) -> None:
        """Handle SIGTERM and SIGINT.

        Call it again after Spark has started, because Spark replaces the handler of SIGINT.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())

    def is_set(self) -> bool:
        """Whether the job must stop."""
        return self._stop.is_set()

    def now(self) -> float:
        return time.monotonic()

    def pause(self, seconds: float) -> bool:
        """Wait for `seconds`. Return True, at once, when the job must stop."""
        return self._stop.wait(seconds)


def run(options: Run, master: str, kafka: Mapping[str, str], stop: StopSignal) -> int:
    """Run the job and return the exit code: 0 after a request to stop, 1 if any query was given up.

    It ends by itself when every query is given up. Raises TakenError if another job uses the checkpoint, and GoneError
    if Java has ended.
    """
    meters = Meters(QUERIES, Liveness(QUERIES, time.monotonic))
    with raising_gone(), ExitStack() as stack:
        if options.metrics_listen is not None:
            stack.callback(serve(meters, *options.metrics_listen))
        stack.enter_context(java_folder(*log_options()))
        jars = [Path(jar) for jar in options.jars]
        spark = build("reconsume-view", jars=jars, master=master, options=SETTINGS | dict(options.conf))
        stack.callback(end_java, spark)
        stop.listen()
        _lock = claim(spark, options.checkpoint, say)
        cluster = Cluster(spark, kafka, answers=Answers(say, stop.is_set))
        positions = ReadPositions(time.monotonic())
        listener = Listener(meters, say, cluster, positions)
        spark.streams.addListener(listener)
        say(f"{versions(spark)}; reading {options.reads()}")
        job = Queries(spark, options, kafka, cluster, meters, positions)
        limit = stop.now() + FIRST_SECONDS
        supervisor = Supervisor(
            job.starts,
            stop,
            most=options.max_failures,
            say=say,
            restarting=meters.restarting,
            giving_up=meters.giving_up,
            waiting=meters.liveness.alive,
            may_begin=lambda name: name == "view" or listener.settled("view") or stop.now() > limit,
        )
        with shown(listener.rows):
            meters.liveness.begin()
            good = supervisor.run()
        say("stopped" if good else "ended; some queries were given up")
    return 0 if good else 1


def serve(meters: Meters, host: str, port: int) -> Callable[[], None]:
    """Serve metrics and `/livez` until the returned function is called.

    Raises TakenError if the address cannot be used.
    """
    try:
        server, _ = start_http_server(port, host, meters.registry)
    except OSError as error:
        why = error.strerror or str(error)
        raise TakenError(f"cannot listen on {host}:{port} (--metrics-listen): {why}") from error
    server.set_app(with_livez(make_wsgi_app(meters.registry), meters.liveness))
    say(f"metrics at http://{host}:{server.server_port}/metrics")
    return server.shutdown


def after_death(options: Run, ran: float, gone: GoneError, stop: StopSignal) -> int:
    """Restart the program after its Java process has crashed; return the exit code if the program must end.

    The restart comes after a wait. The program ends with 1 after too many crashes in a row or under spark-submit, and
    with 0 after a request to stop.
    """
    if (process := java_process()) is not None:
        end(process)
    streak = Streak(options.deaths).failed(ran)
    count = f"{streak.failures} of {options.max_failures} deaths in a row"
    if submitted() or streak.failures >= options.max_failures:
        say(f"Spark's Java process crashed ({count}); the job ends: {gone}")
        return 1
    say(f"Spark's Java process crashed ({count}); the job starts again in {streak.wait:g} s: {gone}")
    if not stop.pause(streak.wait):
        start_anew(streak.failures)
    return 0
