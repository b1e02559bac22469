"""What a run of the demo shows in each mode, and the configuration that makes the sidecar do it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from reconsume.sidecar.core.policy import InPlace
from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.demo.plan import SPECIAL, make_plan
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import Settings, load
from reconsume.sidecar.settings.modes import ignored_settings
from reconsume.sidecar.settings.policy import in_place_of


def settings_of(mode: Mode, tmp_path: Path) -> Settings:
    """What the sidecar makes of the plan's configuration."""
    url = "http://127.0.0.1:1/orders" if mode.is_served else None
    tree = make_plan(mode, None, 40).configuration("billing", "127.0.0.1:9092", "127.0.0.1:0", url)
    (tmp_path / "reconsume.yaml").write_text(yaml.safe_dump(tree), "utf-8")
    return load(tmp_path / "reconsume.yaml", (), {})


@pytest.mark.parametrize("mode", Mode)
def test_a_demo_writes_no_setting_that_its_mode_ignores(mode: Mode, tmp_path: Path) -> None:
    assert ignored_settings(settings_of(mode, tmp_path)) == []


def test_the_short_ladder_says_that_it_is_short() -> None:
    plan = make_plan(Mode.PUSH, None, 400)
    assert plan.retry == {"ladder": ["1s", "2s", "5s", "10s"], "levels": ["1s", "2s", "5s", "10s"]} | {
        "max_reconsume_times": 4
    }
    assert "short" in plan.sentence
    assert plan.limit < 110


def test_the_real_ladder_says_how_long_it_takes() -> None:
    plan = make_plan(Mode.PUSH, "rocketmq", 400)
    assert plan.retry == {"ladder": "rocketmq", "max_reconsume_times": 16}
    assert "4h45m40s" in plan.sentence
    assert plan.limit > 17_140


def test_a_ladder_of_ones_own_has_as_many_retries_as_delays() -> None:
    plan = make_plan(Mode.PUSH, "2s, 1s,2s", 10)
    assert plan.retry == {"ladder": ["2s", "1s", "2s"], "levels": ["1s", "2s"], "max_reconsume_times": 3}


@pytest.mark.parametrize("ladder", ["1", "1s,,2s", "rocket", "11d", "0s"])
def test_a_ladder_that_is_none_is_a_configuration_error(ladder: str) -> None:
    with pytest.raises(ConfigError, match="--ladder"):
        make_plan(Mode.PUSH, ladder, 10)


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.PUSH])
def test_the_sentence_says_the_mode_and_what_is_special(mode: Mode) -> None:
    sentence = make_plan(mode, None, 400).sentence
    assert sentence.startswith(f"mode {mode}: ")
    assert sentence.startswith(SPECIAL[mode])
    assert ("--ladder rocketmq" in sentence) == (mode is not Mode.ORDERED), "only where a ladder is used"


@pytest.mark.parametrize("mode", list(Mode))
def test_every_mode_ends_within_two_minutes(mode: Mode) -> None:
    assert make_plan(mode, None, 400).limit < 120


def test_a_ladder_means_nothing_where_retries_are_made_in_place() -> None:
    with pytest.raises(ConfigError, match="in place"):
        make_plan(Mode.ORDERED, "1s,2s", 10)


def test_each_mode_is_configured_as_such(tmp_path: Path) -> None:
    found = {mode: settings_of(mode, tmp_path) for mode in Mode}
    assert [found[mode].deliver.mode for mode in Mode] == ["push", "push", "push", "pull", "relay"]
    assert found[Mode.BATCH].deliver.batch.max_size == 16
    assert found[Mode.ORDERED].deliver.order == "key"
    assert in_place_of(found[Mode.ORDERED]) == InPlace(300, 3)
    assert found[Mode.PULL].pull.min_invisible == 1000
    assert {in_place_of(found[mode]) for mode in Mode if mode is not Mode.ORDERED} == {None}


def test_an_ordered_run_has_many_lines_and_orders_without_a_key() -> None:
    keys = Counter(order.key for order in make_plan(Mode.ORDERED, None, 80).make_orders())
    assert len(keys) == 8
    assert keys[None] == 10
    assert {None, b"", b"\x00\xff\xfe"} <= set(keys)
