"""`python -m benchmarks`: prints one table; copy it into benchmarks/README.md with machine and date."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import cluster
from benchmarks.lateness import lateness
from benchmarks.pairs import PAIRS, Pair, Run, compared
from benchmarks.pull import pulled
from benchmarks.relay import fill, relay
from benchmarks.service import OUTPUT_TOPIC, Nginx
from benchmarks.shares import shares
from benchmarks.sidecar import Sidecar, Usage
from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka

SCENARIOS = (
    *("push", "unix", "keyed", "ladder", "batch", "pull"),
    *("fail", "default-fail", "ladder-fail", "output", "relay"),
)
console = Console(width=120)
talk = Console(stderr=True)

BATCH = ("deliver.batch.max_size=128", "deliver.concurrency=8")
DEFAULT_LADDER = ("retry.ladder=rocketmq", "retry.levels=null")
LADDER = ("deliver.order=key", "retry.ordered_ladder=[1h]", "retry.ordered_max_waiting=1000000")
MOST_WAITING = 100_000
"""Records that may fail in an order: beyond 16 384 offsets of a queue its main partition is paused."""
BATCHED_TIMES = 5
"""So many times the records of other scenarios: they are through in a second otherwise."""
NO = "no target of its own"
QUIET = 1.5
"""Seconds without a request after which the progress is looked at: it is committed once a second."""


class Row(NamedTuple):
    """One line of the table; a figure that a scenario does not have is None."""

    name: str
    rate: float | None
    ratio: float | None
    cpu_us: float | None
    note: str


class Scenario(NamedTuple):
    """What is measured, its target, and the run."""

    name: str
    target: str
    run: Callable[[], Run]


class Bench:
    """One run: a broker, a service, and the scenarios one after another."""

    def __init__(self, bootstrap: str, nginx: Nginx, records: int, repeats: int) -> None:
        self.bootstrap = bootstrap
        self.nginx = nginx
        self.records = records
        self.repeats = repeats
        self._names = iter(range(1_000_000))
        self._output_size: int | None = None
        """Offsets of the one topic for outputs, as nginx's answer is fixed; None: it is not there yet."""

    def _number(self) -> int:
        """A number that names things of this run only."""
        return next(self._names)

    def bare_copy(self, fill: Callable[[str], None]) -> tuple[float, float]:
        """Records a second and CPU µs a record of the copy loop, on a topic that is filled so."""
        source, target = (f"bench-{self._number()}" for _ in range(2))
        for topic in (source, target):
            cluster.create(self.bootstrap, topic)
        fill(source)
        command = [sys.executable, "-m", "benchmarks.bare_copy", self.bootstrap, source, target]
        command += [str(cluster.PARTITIONS), str(self.records)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return found["records"] / found["seconds"], found["cpu"] / found["records"] * 1e6

    def fill(self, topic: str) -> None:
        """Records of the usual kind: 200 B, a key, three headers."""
        cluster.fill(self.bootstrap, topic, self.records)

    def fill_due(self, topic: str) -> None:
        """Such records with our ten headers more, as they are in a level topic."""
        fill(self.bootstrap, "orders", topic, "g", self.records, cluster.PARTITIONS)

    def sets(self, path: str) -> tuple[str, list[str]]:
        """A fresh main topic and the settings of a sidecar for it; retries come back after an hour, not meanwhile."""
        number = self._number()
        topic = f"bench-{number}"
        return topic, [
            f"group=g-{number}",
            f"topics=[{topic}]",
            f"kafka={{bootstrap.servers: '{self.bootstrap}'}}",
            f"deliver.url={self.nginx.url(path)}",
            "deliver.concurrency=256",
            "retry.ladder=[1h]",
            "retry.levels=ladder",
            f"api.listen=127.0.0.1:{20000 + number}",
            "api.probe_listen=null",
            "deliver.outage_failures=null",
            "log.level=warning",
        ]

    def through(self, path: str, done: Callable[[str, str], int], *more: str, most: int = 1 << 31) -> Run:
        """Send all records, or `most`, through a sidecar."""
        topic, sets = self.sets(path)
        sets += more
        records = min(self.records, most)
        cluster.create(self.bootstrap, topic, cluster.settings_of(sets))
        cluster.fill(self.bootstrap, topic, records)
        before = self.nginx.count()
        sidecar = Sidecar(sets)
        try:
            first = self._first(sidecar, before)
            last, finished = self._until(sidecar, records, lambda: done(topic, sets[0].removeprefix("group=")))
            return Run(
                finished / (last.at - first.at),
                (last.cpu - first.cpu) / finished * 1e6,
                sidecar.peak,
                first.at - sidecar.started_at,
            )
        finally:
            sidecar.close()

    def _first(self, sidecar: Sidecar, before: int) -> Usage:
        polls = 1
        while self.nginx.count() - before <= polls:
            polls += 1
            sidecar.usage()
            time.sleep(0.005)
        return sidecar.usage()

    def _until(self, sidecar: Sidecar, records: int, done: Callable[[], int]) -> tuple[Usage, int]:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            usage = sidecar.usage()
            if (count := done()) >= records:
                return usage, count
            time.sleep(0.02)
        raise SystemExit("the records did not get through in 300 s")

    def delivered(self) -> Callable[[str, str], int]:
        """Counts the requests that the service has had since now, without those that only ask for the count."""
        start, polls = self.nginx.count(), 0

        def count(_topic: str, _group: str) -> int:
            nonlocal polls
            polls += 1
            return self.nginx.count() - start - polls

        return count

    def committed(self, topic: str, group: str) -> int:
        """Counts the records that the group has committed."""
        return cluster.committed(self.bootstrap, group, topic)

    def batched(self) -> Run:
        """Send records in batches; what `through` gives. The last request is the end: progress is known too late."""
        topic, sets = self.sets("ok")
        records = self.records * BATCHED_TIMES
        cluster.create(self.bootstrap, topic, cluster.settings_of(sets))
        cluster.fill(self.bootstrap, topic, records)
        before = self.nginx.count()
        sidecar = Sidecar([*sets, *BATCH])
        try:
            first = self._first(sidecar, before)
            last = self._until_quiet(sidecar)
            group = sets[0].removeprefix("group=")
            if (count := cluster.committed(self.bootstrap, group, topic)) < records:
                raise SystemExit(f"only {count} of {records} records got through")
            rate, cpu = records / (last.at - first.at), (last.cpu - first.cpu) / records * 1e6
            return Run(rate, cpu, sidecar.peak, first.at - sidecar.started_at)
        finally:
            sidecar.close()

    def _until_quiet(self, sidecar: Sidecar) -> Usage:
        """The usage at the last request before none came for a while."""
        last, seen = sidecar.usage(), self.nginx.count()
        while (usage := sidecar.usage()).at - last.at < QUIET:
            time.sleep(0.01)
            if (count := self.nginx.count()) > seen + 1:  # one is this count
                last = usage
            seen = count
        return last

    def with_outputs(self) -> Run:
        """Send records, each of which is answered with a record to write; what `through` gives."""
        if self._output_size is None:
            cluster.create(self.bootstrap, OUTPUT_TOPIC)
        before = self._output_size or 0
        result = self.through("output", self.committed, f"deliver.outputs=[{OUTPUT_TOPIC}]")
        self._output_size = cluster.size(self.bootstrap, OUTPUT_TOPIC)
        if (written := self._output_size - before) < self.records:
            raise SystemExit(f"only {written} of {self.records} outputs were written")
        return result

    @property
    def scenarios(self) -> dict[str, Scenario]:
        """Every scenario by its short name, in the order of the table."""
        return {
            "push": Scenario(
                "push, one a request", "must 0.20, aim 0.30", lambda: self.through("ok", self.delivered())
            ),
            "unix": Scenario("the same, over a Unix socket", NO, lambda: self.through("unix-ok", self.delivered())),
            "keyed": Scenario(
                "push, ordered by key", NO, lambda: self.through("ok", self.delivered(), "deliver.order=key")
            ),
            "ladder": Scenario("the same, with the ladder", NO, lambda: self.through("ok", self.delivered(), *LADDER)),
            "batch": Scenario("push, batch of 128", "must 0.8, aim 1.0", self.batched),
            "pull": Scenario(
                "pull, receive 128 + ack", NO, lambda: Run(*pulled(self.bootstrap, self.records, self.sets))
            ),
            "fail": Scenario(
                "all fail → level topics", "must 0.15, aim 0.30", lambda: self.through("fail", self.committed)
            ),
            "default-fail": Scenario(
                "all fail, with the default ladder and its six levels",
                NO,
                lambda: self.through("fail", self.committed, *DEFAULT_LADDER),
            ),
            "ladder-fail": Scenario(
                "all fail, ordered by key → queue topics",
                NO,
                lambda: self.through("fail", self.committed, *LADDER, most=MOST_WAITING),
            ),
            "output": Scenario("success with one output", "CPU: must 1.3 of all fail", self.with_outputs),
            "relay": Scenario(
                "relay of due records",
                "must 0.5, aim 0.8",
                lambda: Run(*relay(self.bootstrap, self._number(), self.records)),
            ),
        }

    def rows(self, only: Sequence[str]) -> list[Row]:
        """The scenarios that are asked for, each repeated; medians, and the ratio to the round's copy loop."""
        bare: list[tuple[float, float]] = []
        bare_due: list[tuple[float, float]] = []
        runs: dict[str, list[Run]] = {name: [] for name in self.scenarios if name in only}
        for number in range(self.repeats):
            talk.print(f"round {number + 1} of {self.repeats}")
            bare.append(self.bare_copy(self.fill))
            if "relay" in runs:
                bare_due.append(self.bare_copy(self.fill_due))
            for name, found in runs.items():
                found.append(self.scenarios[name].run())
        rows = [self._yardstick("bare copy loop", "consume → produce, Python", bare, bare)]
        if bare_due:
            rows.append(self._yardstick("the same on due records", "13 headers instead of 3", bare_due, bare))
        rows += [self._row(self.scenarios[name], found, bare) for name, found in runs.items()]
        return rows + [_beside(pair, runs) for pair in PAIRS if {pair.one, pair.other} <= runs.keys()]

    def _yardstick(self, name: str, note: str, runs: list[tuple[float, float]], bare: list[tuple[float, float]]) -> Row:
        ratio = _median([run[0] / yard[0] for run, yard in zip(runs, bare, strict=True)])
        return Row(name, _median([rate for rate, _ in runs]), ratio, _median([cpu for _, cpu in runs]), note)

    def _row(self, scenario: Scenario, runs: list[Run], bare: list[tuple[float, float]]) -> Row:
        ratio = _median([run.rate / yard[0] for run, yard in zip(runs, bare, strict=True)])
        peak, first = max(run.peak for run in runs), _median([run.first_s for run in runs])
        note = f"{scenario.target}; peak {peak / 1e6:.0f} MB, first delivery after {first:.1f} s"
        return Row(
            scenario.name, _median([run.rate for run in runs]), ratio, _median([run.cpu_us for run in runs]), note
        )


def _beside(pair: Pair, runs: Mapping[str, Sequence[Run]]) -> Row:
    return Row(f"{pair.one} beside {pair.other}", None, None, None, compared(pair, runs[pair.one], runs[pair.other]))


def idle_memory(bench: Bench) -> Row:
    """Memory and CPU of a sidecar with nothing to do."""
    topic, sets = bench.sets("ok")
    cluster.create(bench.bootstrap, topic, cluster.settings_of(sets))
    sidecar = Sidecar(sets)
    try:
        time.sleep(6)
        start = sidecar.usage()
        time.sleep(10)
        end = sidecar.usage()
    finally:
        sidecar.close()
    busy = (end.cpu - start.cpu) / (end.at - start.at) * 100
    return Row("idle", None, None, None, f"{end.rss / 1e6:.0f} MB (must 80), {busy:.2f} % of a core")


def _median(values: list[float]) -> float:
    return statistics.median(values)


def show(rows: list[Row]) -> None:
    """Print the table."""
    table = Table(title="Reconsume against a bare Python copy loop, same run")
    for column in ("scenario", "records/s", "ratio", "CPU µs/record", "note"):
        table.add_column(column, justify="left" if column in ("scenario", "note") else "right")
    for row in rows:
        table.add_row(
            row.name,
            "" if row.rate is None else f"{row.rate:,.0f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.cpu_us is None else f"{row.cpu_us:.1f}",
            row.note,
        )
    console.print(table)


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000, help="records a scenario")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of all scenarios")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=SCENARIOS, help="scenarios, and nothing else")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it works")
    options = parser.parse_args()
    records, repeats = (20_000, 1) if options.quick else (options.records, options.repeats)
    nginx = Nginx()
    try:
        with EmbeddedKafka.start() as kafka:
            bench = Bench(kafka.bootstrap, nginx, records, repeats)
            show(bench.rows(options.only))
            if options.only is SCENARIOS:
                late = Row("lateness of a due retry", None, None, None, lateness(kafka.bootstrap))
                show([idle_memory(bench), late])
                show([Row(name, None, None, None, result) for name, result in shares(kafka.bootstrap)])
    finally:
        nginx.close()


if __name__ == "__main__":
    main()
