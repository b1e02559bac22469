"""The numbers and words in docs/contract.md are those of the code, and its defaults those of the settings."""

from __future__ import annotations

import re

import pytest

from reconsume.sidecar.api import pull
from reconsume.sidecar.cli.terminal import exit_codes
from reconsume.sidecar.core import decide, fetching, outbox, policy, progress, progress_codec, reason_classes
from reconsume.sidecar.core.pace import pace
from reconsume.sidecar.delivery import verdict
from reconsume.sidecar.delivery.push import request
from reconsume.sidecar.deploy import container
from reconsume.sidecar.dlq import dismissals, letters
from reconsume.sidecar.settings import group_policy
from reconsume.sidecar.view import copy
from reconsume.topics import events, foreign_headers, levels, other_group_headers, retry_headers, specs
from reconsume.topics.durations import render_duration
from tests.docs.contract_page import PROMISES, ROOT
from tests.docs.limits_page import bytes_, ms, number

DEFAULTS = dict(
    re.findall(
        r"^\| `([a-z_.]+)` \| [^|]+ \| `([^`]*)` \|",
        (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
"""The default of each setting, as it is written (a test compares that page with the settings)."""
SAID = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)(?:: [a-z-]+)?`(?:\s\(|, )default ([^),]+)")
SECTIONS = {key.split(".")[0] for key in DEFAULTS if "." in key} - {"kafka"}
SETTING = re.compile(rf"`((?:{'|'.join(sorted(SECTIONS))})\.[a-z_.]+)")

ROCKETMQ, PULSAR = (levels.build_ladder(name).delays[:16] for name in ("rocketmq", "pulsar"))


def written(delays: tuple[int, ...]) -> str:
    return " ".join(map(render_duration, delays))


def days(count: int) -> str:
    return f"{count // specs.DAY} days"


def seconds(count: int) -> str:
    return f"{count / 1000:g}"


NUMBERS: tuple[tuple[str, str], ...] = (
    ("1.3", f"a key above {bytes_(request.LONGEST_KEY)}"),
    *(("1.5", f"`{word}`") for word in verdict.WORDS),
    ("2.2", f"| `rocketmq` | {written(ROCKETMQ)} | {render_duration(sum(ROCKETMQ))} |"),
    ("2.2", f"| `pulsar` | {written(levels.TABLE)} | {render_duration(sum(PULSAR))} |"),
    ("2.4", f"{ms(levels.SHORTEST_ASKED)} to {days(levels.LONGEST)}"),
    ("2.5", f"among the {len(levels.TABLE)} of the table: {levels.LEVELS}."),
    ("2.7", f"of more than {ms(fetching.HOLD_WITHIN_MS)}"),
    ("3.2", f"for its delay and {days(specs.OUTAGE_MARGIN)} more"),
    ("3.2", f"{bytes_(specs.HEADER_ROOM)} more"),
    ("3.2", f"letters for {days(specs.DLQ_RETENTION)}, the events {days(specs.EVENTS_RETENTION)}"),
    ("3.2", f"the view {days(specs.VIEW_RETENTION)}"),
    *(("3.5", name) for name in retry_headers.OURS - {retry_headers.RETRY_POSTPONED_AT}),
    ("3.6", f"`{other_group_headers.ORIGINAL}…`"),
    ("3.7", f"more than {number(retry_headers.MOST_HEADERS)} headers"),
    ("3.8", f"names: {', '.join(foreign_headers.SYSTEMS)}."),
    ("4.3", f"`--max-redrives` times ({letters.MOST_REDRIVES} by default)"),
    ("4.4", f"at {number(dismissals.MOST)} dismissed letters"),
    ("5.2", f"within {ms(policy.SHORTEST_IN_PLACE)} and {ms(policy.LONGEST_IN_PLACE)}"),
    ("6.4", f"up to {number(pull.MOST_RECORDS)} records at a time"),
    ("6.4", f"wait up to {ms(pull.LONGEST_WAIT_MS)}"),
    ("6.4", f"to {ms(pull.LONGEST_INVISIBLE)}."),
    ("7.1", f"at the latest after {ms(outbox.PROGRESS_EVERY_MS)}"),
    ("7.2", f"Beyond {number(progress.SPAN)} offsets"),
    ("7.2", f"take {number(progress_codec.NEEDED)} bytes"),
    ("7.2", f"its last {number(progress.Bounds().window)} offsets"),
    ("7.2", f"more than {number(progress.Bounds().far_bytes)} bytes"),
    ("7.6", f"every {seconds(outbox.FIRST_TRY_MS)} to {seconds(outbox.LAST_TRY_MS)} s"),
    ("7.6", f"more than {outbox.MOST_REFUSED} such records"),
    ("7.7", f"every {seconds(outbox.FIRST_TRY_MS)} to {seconds(outbox.LAST_TRY_MS)} s"),
    ("8.1", f"after {seconds(pace.FIRST_PROBE_MS)} s at first and every {seconds(pace.LAST_PROBE_MS)} s at most"),
    ("8.2", f"at least {('no', 'one', 'two', 'three')[pace.FAILING_RECORDS]} records"),
    ("8.4", {1_000: "each second"}[pace.START_HANGS_MS]),
    ("8.5", f"{ms(verdict.SHORTEST_THROTTLE_MS)} to {ms(verdict.VerdictRules().longest_throttle_ms)}"),
    ("8.5", {1 / 8: "up to an eighth"}[pace.FREE]),
    ("8.5", {0.5: "by half"}[pace.ALL]),
    ("8.6", f"after {ms(verdict.SHORTEST_POSTPONEMENT)} to {ms(verdict.LONGEST_POSTPONEMENT)}"),
    ("8.6", f"{ms(verdict.USUAL_POSTPONEMENT)} if nothing is said"),
    ("8.6", f"below {ms(decide.LONGEST_IN_MEMORY)}"),
    *(("10.1", f"`{key}`") for key in group_policy.KEYS),
    *(("11.1", state) for state in events.State),
    ("11.4", f"{number(copy.BOUND.sums)} rows or {copy.BOUND.sums_bytes // 1_000_000} MB of names"),
    ("11.5", f"the newest {number(copy.BOUND.records)} events"),
    ("11.4", f"{number(copy.BOUND.records)} records or {copy.BOUND.bytes // 1_000_000_000} GB"),
    *(("12.1", str(code)) for code in exit_codes.MEANINGS),
    ("13.3", f"within {container.USUAL_MEMORY.removesuffix('Mi')} MiB"),
    ("13.4", f"keeps {reason_classes.MOST} by name"),
)


def test_what_is_in_the_text_is_what_the_code_has() -> None:
    assert [f"{promise}: {text}" for promise, text in NUMBERS if text not in PROMISES[promise].text] == []


def test_the_default_that_is_said_of_a_setting_is_its_own() -> None:
    said = [(promise.number, *pair) for promise in PROMISES.values() for pair in SAID.findall(promise.text)]
    assert [line for line in said if DEFAULTS.get(line[1]) != line[2]] == []
    assert len(said) > 35


def test_each_setting_that_is_named_is_one() -> None:
    named = {key for promise in PROMISES.values() for key in SETTING.findall(promise.text)}
    assert sorted(named - DEFAULTS.keys()) == []


@pytest.mark.parametrize("text", ["`deliver.timeout` (default 15m)", "`deliver.batch.on_failure: split` (default all)"])
def test_a_default_is_seen(text: str) -> None:
    assert SAID.search(text) is not None
