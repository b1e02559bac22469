"""`reconsume demo`: the whole system at work on a real Kafka, and the proof that nothing was lost.

The steps: start everything, produce orders, watch until each has ended, stop the sidecar, read all topics, and check
them against what the service saw.
"""

from __future__ import annotations

import signal
import tempfile
import time
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

from reconsume.sidecar.dev.demo.environment import Additions, Environment, open_environment
from reconsume.sidecar.dev.demo.ledger import deliveries_of, outages_of
from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.demo.plan import IN_PLACE_LEVEL, Plan
from reconsume.sidecar.dev.demo.screen import Scene, Screen, in_view
from reconsume.sidecar.dev.demo.topic_dump import EventTail, dump_topics
from reconsume.sidecar.dev.demo.tracking import OrderTracker
from reconsume.sidecar.dev.demo.traffic import Traffic
from reconsume.sidecar.dev.demo.verify import Report, Rules, verify
from reconsume.sidecar.dev.demo.view import View, reading_view
from reconsume.sidecar.java.spark_job import prepare
from reconsume.sidecar.settings.policy import in_place_of
from reconsume.topics.events import Event, decode_event

POLL_SECONDS = 0.05


def main(plan: Plan, *, color: bool = True, keep: bool = False, view: bool = False) -> int:
    """Run the demo. Return 0 if all is well, 1 if an order was lost, counted twice, early, changed or out of order.

    Raises SetupError if Java is missing or a process ends, KeyboardInterrupt on Ctrl-C and SIGTERM; every process is
    then ended. `keep` leaves all data in a folder and prints its name. `view` also runs the Spark job.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    screen = Screen(color)
    screen.say(plan.sentence)
    jars = prepare() if view else []
    folder = Path(tempfile.mkdtemp(prefix="reconsume-demo-")) if keep else None
    if folder is not None:
        screen.say(f"everything is kept in {folder}")
    shop = ("--down-after", str(plan.produce_seconds / 2), "--down-for", str(plan.down_seconds))
    with open_environment(plan, shop, folder, Additions(jars), screen.say) as stage, viewed(stage) as shown:
        seconds = follow(stage, plan, screen, shown)
        drained = stop(stage, screen)
        report = audit(stage)
        good = shown is None or judge_view(shown, stage, screen)
    screen.result(report, seconds, plan.mode)
    return judge(report, plan, drained and good, screen)


def viewed(stage: Environment) -> AbstractContextManager[View | None]:
    """Return the view, or None if there is no Spark job."""
    return nullcontext() if stage.job is None else reading_view(stage.settings)


def follow(stage: Environment, plan: Plan, screen: Screen, view: View | None) -> float:
    """Produce the orders and show their progress until all have ended; return the seconds that it took."""
    order_tracker = OrderTracker(IN_PLACE_LEVEL if plan.mode is Mode.ORDERED else None)
    traffic = Traffic(stage.bootstrap, plan.make_orders(), plan.produce_seconds)
    began = time.monotonic()
    with closing(EventTail(stage.bootstrap, stage.settings.names.events)) as tail, screen:
        order_tracker.take_lines(stage.ledger.lines)
        while True:
            stage.check()
            traffic.step()
            order_tracker.take_events(tail.read(POLL_SECONDS))
            order_tracker.take_lines(stage.ledger.read())
            if view is not None:
                view.read()
            scene = scene_of(order_tracker, plan, traffic.stored, view)
            seconds = time.monotonic() - began
            ended = scene.counts.committed + scene.counts.dead
            if ended >= plan.orders or seconds > plan.limit:
                screen.show(scene, last=True)
                return seconds
            screen.show(scene)


def scene_of(order_tracker: OrderTracker, plan: Plan, stored: int, view: View | None) -> Scene:
    """Return the present state as a scene."""
    now = time.time() * 1000
    began = now if order_tracker.began is None else order_tracker.began
    counts = order_tracker.counts(stored, now)
    is_down = order_tracker.down_since is not None
    view_counts = None if view is None else view.counts()
    return Scene(
        (now - began) / 1000, began, plan.orders, counts, plan.levels, order_tracker.journeys(), is_down, view_counts
    )


def stop(stage: Environment, screen: Screen) -> bool:
    """Stop the sidecar as Kubernetes does; return whether it drained and ended with 0."""
    began = time.monotonic()
    code = stage.sidecar.stop()
    took = time.monotonic() - began
    if code == 0:
        screen.say(f"SIGTERM: the sidecar drained and ended with 0 in {took:.1f} s")
        return True
    screen.say(f"SIGTERM: the sidecar ended with {code} after {took:.1f} s:\n{stage.sidecar.log_tail()}")
    return False


def audit(stage: Environment) -> Report:
    """Stop the service, read everything and check it."""
    assert stage.shop is not None, "only `dev up -c` has none"
    stage.shop.stop()
    stage.ledger.read()
    lines = stage.ledger.lines
    rows = dump_topics(stage.bootstrap, stage.topics)
    settings = stage.settings
    rules = Rules(in_place_of(settings), relay=settings.deliver.mode == "relay")
    return verify(rows, deliveries_of(lines), settings.names, settings.topic_names, outages_of(lines), rules)


def judge_view(view: View, stage: Environment, screen: Screen) -> bool:
    """Check that the view is what the events make; print the result and return whether it is right."""
    rows = dump_topics(stage.bootstrap, [stage.settings.names.events])
    events = [event for row in rows if isinstance(event := decode_event(row.value), Event)]
    if wrong := view.settle(events):
        for finding in wrong:
            screen.tell(f"FAILED: the view: {finding}")
        return False
    counts = view.counts()
    rows_made = f"{sum(counts.values())} rows are what {len(events)} events make"
    screen.say(f"the view is right: {rows_made}: {in_view(counts)}")
    return True


def judge(report: Report, plan: Plan, drained: bool, screen: Screen) -> int:
    """Print the findings and return the exit code."""
    findings = [f"{one.kind} {one.id}: {one.text}" for one in report.findings]
    if report.orders != plan.orders:
        findings.insert(0, f"{plan.orders} orders were produced, and the topic has {report.orders}")
    basis = f"{report.rows} records of all topics against {sum(report.deliveries)} deliveries in the service's ledger"
    if not findings:
        in_turn = ", each in its turn" if plan.mode is Mode.ORDERED else ""
        screen.tell(
            f"checked: {basis}: nothing lost, each attempt counted once, none early{in_turn}, every byte as it was"
        )
        return 0 if drained else 1
    screen.tell(f"FAILED: {basis}; findings: {len(findings)}")
    for finding in findings:
        screen.tell(finding)
    return 1
