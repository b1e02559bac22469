"""`reconsume demo`: the whole thing at work on a real Kafka, and the proof that nothing was lost.

Reads like its own description: start everything, produce orders, watch until each has come to its end, stop the
sidecar, read all topics, check them against what the service saw.
"""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from sidecar.dev.board import Board, Scene
from sidecar.dev.dump import EventTail, dump_topics, reading
from sidecar.dev.ledger import deliveries_of, outages_of
from sidecar.dev.orders import make_orders
from sidecar.dev.stage import Stage, open_stage
from sidecar.dev.story import Story
from sidecar.dev.traffic import Traffic
from sidecar.dev.verify import Report, verify
from sidecar.errors import ConfigError
from topics.durations import parse_duration, render_duration
from topics.levels import TABLE, build_ladder, level_delays

SHORT = "1s,2s,5s,10s"
NAMED = ("rocketmq", "pulsar")
NAMED_TIMES = 16
DOWN_SECONDS = 5.0
STALL_SECONDS = 40.0
"""How much longer than it must the demo may take before it stops waiting and looks what is lost."""
POLL_SECONDS = 0.05


class Plan(msgspec.Struct, frozen=True):
    """What is shown: the `retry` section of the configuration, what it waits in all (ms), and the production."""

    ladder: str
    retry: dict[str, Any]
    delays: tuple[int, ...]
    """What the retries wait, in their order."""
    levels: tuple[str, ...]
    orders: int
    produce_seconds: float

    @property
    def waits(self) -> int:
        """What a record that always fails waits, ms."""
        return sum(self.delays)

    @property
    def limit(self) -> float:
        """Seconds after which the demo ends, whatever is still open."""
        return self.produce_seconds + DOWN_SECONDS + self.waits / 1000 * 1.02 + STALL_SECONDS

    @property
    def sentence(self) -> str:
        """What a person must know before watching."""
        total = render_duration(self.waits)
        if self.ladder in NAMED:
            return f"ladder {self.ladder}: {len(self.delays)} retries that wait {total} in all; the demo takes as long"
        waits = " ".join(map(render_duration, self.delays))
        return f"ladder {waits}: short, for the demo; the real one: --ladder rocketmq"


def make_plan(ladder: str | None, orders: int) -> Plan:
    """The plan for a ladder: `rocketmq`, `pulsar`, or delays joined by commas. ConfigError when it is none."""
    if orders < 1:
        raise ConfigError([f"--orders: must be 1 or more, not {orders}"])
    text = ladder or SHORT
    span = max(3.0, min(10.0, orders / 40))
    if text in NAMED:
        built = build_ladder(text)
        delays = tuple(built.delay(retry) for retry in range(1, NAMED_TIMES + 1))
        levels = tuple(map(render_duration, level_delays(built, TABLE)))
        return Plan(text, {"ladder": text, "max_reconsume_times": NAMED_TIMES}, delays, levels, orders, span)
    try:
        delays = tuple(parse_duration(part.strip()) for part in text.split(","))
        build_ladder(delays)
    except ValueError as error:
        raise ConfigError([f"--ladder: {error}; or one of {', '.join(NAMED)}"]) from error
    levels = tuple(map(render_duration, sorted(set(delays))))
    waits = list(map(render_duration, delays))
    retry = {"ladder": waits, "levels": list(levels), "max_reconsume_times": len(delays)}
    return Plan(text, retry, delays, levels, orders, span)


def main(*, ladder: str | None = None, orders: int = 400, color: bool = True, keep: bool = False) -> int:
    """Run the demo: 0 when all is well, 1 when something was lost, counted twice, early or changed.

    Raises ConfigError for a wrong ladder, SetupError when Java is missing or a process ends, KeyboardInterrupt on
    Ctrl-C and SIGTERM; everything that was started is then ended. `keep` leaves all data in a folder and names it.
    """
    plan = make_plan(ladder, orders)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    board = Board(color)
    board.say(plan.sentence)
    folder = Path(tempfile.mkdtemp(prefix="reconsume-demo-")) if keep else None
    if folder is not None:
        board.say(f"everything is kept in {folder}")
    shop = ("--down-after", str(plan.produce_seconds / 2), "--down-for", str(DOWN_SECONDS))
    with open_stage(plan.retry, shop, folder, board.say) as stage:
        seconds = watch(stage, plan, board)
        drained = stop(stage, board)
        report = audit(stage)
    board.result(report, seconds)
    return judge(report, plan, drained, board)


def watch(stage: Stage, plan: Plan, board: Board) -> float:
    """Produce the orders and show what becomes of them until all have ended; the seconds it took."""
    story = Story()
    traffic = Traffic(stage.bootstrap, make_orders(plan.orders), plan.produce_seconds)
    began = time.monotonic()
    with reading(stage.bootstrap, [stage.settings.names.events]) as (consumer, _), board:
        tail = EventTail(consumer)
        story.seen(stage.ledger.lines)
        while True:
            stage.check()
            traffic.step()
            story.told(tail.read(POLL_SECONDS))
            story.seen(stage.ledger.read())
            scene = scene_of(story, plan, traffic.stored)
            seconds = time.monotonic() - began
            ended = scene.counts.committed + scene.counts.dead
            if ended >= plan.orders or seconds > plan.limit:
                board.show(scene, last=True)
                return seconds
            board.show(scene)


def scene_of(story: Story, plan: Plan, stored: int) -> Scene:
    """The present moment."""
    now = time.time() * 1000
    began = now if story.began is None else story.began
    counts = story.counts(stored, now)
    is_down = story.down_since is not None
    return Scene((now - began) / 1000, began, plan.orders, counts, plan.levels, story.journeys(), is_down)


def stop(stage: Stage, board: Board) -> bool:
    """Stop the sidecar as Kubernetes does; whether it drained and ended with 0."""
    began = time.monotonic()
    code = stage.sidecar.stop()
    took = time.monotonic() - began
    if code == 0:
        board.say(f"SIGTERM: the sidecar drained and ended with 0 in {took:.1f} s")
        return True
    board.say(f"SIGTERM: the sidecar ended with {code} after {took:.1f} s:\n{stage.sidecar.log_tail()}")
    return False


def audit(stage: Stage) -> Report:
    """Read everything and check it."""
    stage.shop.stop()
    stage.ledger.read()
    lines = stage.ledger.lines
    rows = dump_topics(stage.bootstrap, stage.topics)
    settings = stage.settings
    return verify(rows, deliveries_of(lines), settings.names, settings.topic_names, outages_of(lines))


def judge(report: Report, plan: Plan, drained: bool, board: Board) -> int:
    """Say what the check found; the exit code."""
    findings = [f"{one.kind} {one.id}: {one.text}" for one in report.findings]
    if report.orders != plan.orders:
        findings.insert(0, f"{plan.orders} orders were produced, and the topic has {report.orders}")
    basis = f"{report.rows} records of all topics against {sum(report.deliveries)} deliveries in the service's ledger"
    if not findings:
        board.tell(f"checked: {basis}: nothing lost, each attempt counted once, none early, every byte as it was")
        return 0 if drained else 1
    board.tell(f"FAILED: {basis}; findings: {len(findings)}")
    for finding in findings:
        board.tell(finding)
    return 1
