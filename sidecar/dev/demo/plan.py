"""The plan of a demo run: mode, ladder, number of orders, and the configuration that follows. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.demo.orders import CASE_HEADER, KEYS, MANY_KEYS, TOPIC, Order, make_orders
from reconsume.sidecar.errors import ConfigError
from reconsume.topics.durations import parse_duration, render_duration
from reconsume.topics.levels import build_ladder, level_delays

SHORT = "1s,2s,5s,10s"
NAMED = ("rocketmq", "pulsar")
NAMED_TIMES = 16
SHORTEST_DOWN = 2.5
"""Seconds; more than the time between two lines of the output, or the outage would not be visible."""
STALL_SECONDS = 40.0
"""Seconds that the demo may take beyond its expected time; then it stops waiting and checks which orders are lost."""
PATIENCE = "2s"
"""The time that the shop may need for an order: the delivery's timeout, or its lease."""
BATCH, BATCH_WAIT = 16, "50ms"
IN_PLACE, IN_PLACE_TIMES = "300ms", 3
IN_PLACE_LEVEL = "in place"
SECONDS_IN_LINE = 0.15
"""Seconds that an order adds, on average, to the time that the longest line (one key) of an ordered run may take."""
MIN_INVISIBLE = "1s"
NO_LADDER = "ordered orders are retried in place, where no ladder is used; leave it out"

SPECIAL: dict[Mode, str] = {
    Mode.BATCH: f"mode batch: up to {BATCH} orders in a request, and a verdict for each",
    Mode.ORDERED: f"mode ordered: one order of a key at a time; a failure is tried again in place after {IN_PLACE}, "
    f"at most {IN_PLACE_TIMES} times, and holds back what follows",
    Mode.PULL: f"mode pull: the shop calls for its orders, and leases each for {PATIENCE}",
    Mode.RELAY: "mode relay: the shop reads Kafka itself, and posts what failed to the sidecar",
}
"""The sentence that explains a mode before it runs; for push, the default, the ladder's sentence is enough."""

DELIVER: dict[Mode, dict[str, Any]] = {
    Mode.PUSH: {},
    Mode.BATCH: {"batch": {"max_size": BATCH, "max_wait": BATCH_WAIT}},
    Mode.ORDERED: {"order": "key"},
    Mode.PULL: {"mode": "pull"},
    Mode.RELAY: {"mode": "relay"},
}
"""The settings of each mode in the `deliver` section."""


class Plan(msgspec.Struct, frozen=True):
    """The run: the mode, the `retry` section of the configuration, the retries' delays (ms), the production."""

    mode: Mode
    ladder: str
    retry: dict[str, Any]
    delays: tuple[int, ...]
    """The delays of the retries, in order; empty if they are made in place."""
    levels: tuple[str, ...]
    orders: int
    produce_seconds: float

    @property
    def waits(self) -> int:
        """The time that a record that always fails spends in level topics, ms."""
        return sum(self.delays)

    @property
    def down_seconds(self) -> float:
        """The length of the shop's outage, in the middle of the production."""
        return max(SHORTEST_DOWN, self.produce_seconds / 2)

    @property
    def limit(self) -> float:
        """Seconds after which the demo ends, even if some orders have not ended."""
        in_line = self.orders * SECONDS_IN_LINE if self.mode is Mode.ORDERED else 0
        return self.produce_seconds + self.down_seconds + self.waits / 1000 * 1.02 + in_line + STALL_SECONDS

    @property
    def sentence(self) -> str:
        """The explanation that is shown before the run."""
        special = SPECIAL.get(self.mode)
        if self.mode is Mode.ORDERED:
            return SPECIAL[self.mode]
        return self.ladder_sentence if special is None else f"{special}; {self.ladder_sentence}"

    @property
    def ladder_sentence(self) -> str:
        """A sentence about the ladder and its total delay."""
        total = render_duration(self.waits)
        if self.ladder in NAMED:
            return f"ladder {self.ladder}: {len(self.delays)} retries that wait {total} in all; the demo takes as long"
        waits = " ".join(map(render_duration, self.delays))
        return f"ladder {waits}: short, for the demo; the real one: --ladder rocketmq"

    def make_orders(self) -> tuple[Order, ...]:
        """Return the orders to produce. Ordered mode uses more keys, so that some keys progress while others wait."""
        return make_orders(self.orders, keys=MANY_KEYS if self.mode is Mode.ORDERED else KEYS)

    def configuration(self, group: str, bootstrap: str, listen: str, url: str | None) -> dict[str, Any]:
        """Return the sidecar's configuration; `url` is the shop's address if it is a server."""
        served = {"url": url, "timeout": PATIENCE, "forward_headers": [CASE_HEADER]}
        pull = {"pull": {"min_invisible": MIN_INVISIBLE}} if self.mode is Mode.PULL else {}
        return {
            "group": group,
            "topics": [TOPIC],
            "kafka": {"bootstrap.servers": bootstrap},
            "deliver": (served if url is not None else {}) | DELIVER[self.mode],
            "retry": self.retry,
            "api": {"listen": listen, "probe_listen": None},
            "log": {"format": "text"},
        } | pull


def make_plan(mode: Mode, ladder: str | None, orders: int) -> Plan:
    """Return the plan for a mode and a ladder: `rocketmq`, `pulsar`, or delays joined by commas.

    Raises ConfigError if `orders` is less than 1, if the ladder is invalid, or if one is given for a mode that uses
    none.
    """
    if orders < 1:
        raise ConfigError([f"--orders: must be 1 or more, not {orders}"])
    span = max(3.0, min(10.0, orders / 40))
    if mode is Mode.ORDERED:
        if ladder is not None:
            raise ConfigError([f"--ladder: {NO_LADDER}"])
        levels = custom(SHORT)[0]["levels"]  # of which a failure may ask for one by its number
        retry = {"ordered_interval": IN_PLACE, "ordered_max_times": IN_PLACE_TIMES, "levels": levels}
        return Plan(mode, SHORT, retry, (), (IN_PLACE_LEVEL,), orders, span)
    text = ladder or SHORT
    if text in NAMED:
        built = build_ladder(text)
        delays = tuple(built.delay(retry) for retry in range(1, NAMED_TIMES + 1))
        levels = tuple(map(render_duration, level_delays(None, built)))
        return Plan(mode, text, {"ladder": text, "max_reconsume_times": NAMED_TIMES}, delays, levels, orders, span)
    section, delays, levels = custom(text)
    return Plan(mode, text, section, delays, levels, orders, span)


def custom(text: str) -> tuple[dict[str, Any], tuple[int, ...], tuple[str, ...]]:
    """Return the `retry` section, the delays (ms) and the levels of a ladder given as delays joined by commas.
    Raises ConfigError."""
    try:
        delays = tuple(parse_duration(delay.strip()) for delay in text.split(","))
        build_ladder(delays)
    except ValueError as error:
        raise ConfigError([f"--ladder: {error}; or one of {', '.join(NAMED)}"]) from error
    levels = tuple(map(render_duration, sorted(set(delays))))
    waits = list(map(render_duration, delays))
    return {"ladder": waits, "levels": list(levels), "max_reconsume_times": len(delays)}, delays, levels
