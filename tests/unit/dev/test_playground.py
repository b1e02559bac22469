"""The parts of `dev up` that need no Kafka: its ports, its configuration, its hint."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from reconsume.sidecar.cli.dev.commands import tell
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format
from reconsume.sidecar.dev.demo.modes import Mode
from reconsume.sidecar.dev.demo.orders import Case
from reconsume.sidecar.dev.demo.plan import make_plan
from reconsume.sidecar.dev.demo.playground import LADDER, Links, own_log, sections, usual_or_free
from reconsume.sidecar.dev.demo.shop.web import HOST, PORTS
from reconsume.sidecar.errors import SetupError
from reconsume.sidecar.settings.load import validate


def test_a_port_in_use_is_replaced_by_a_free_one() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert usual_or_free(port) in PORTS
    assert usual_or_free(port) == port


def test_the_configuration_is_sound_and_its_token_is_private(tmp_path: Path) -> None:
    tree = make_plan(Mode.PUSH, LADDER, 1).configuration("billing", "127.0.0.1:9092", f"{HOST}:0", f"http://{HOST}:1/")
    for view in (False, True):
        settings, faults = validate({**tree, **sections(tmp_path, (8471, 8473), "t" * 16, view=view)})
        assert settings is not None, faults
        assert (settings.api.listen.port, settings.ui.listen.port, settings.view.enabled) == (8471, 8473, view)
        assert settings.operators.token_file is not None
        assert Path(settings.operators.token_file).read_text("utf-8") == "t" * 16
        assert Path(settings.operators.token_file).stat().st_mode & 0o077 == 0


def links(topic: str = "orders", *, is_own: bool = False) -> Links:
    file = Path("reconsume.yaml")
    return Links("http://127.0.0.1:8473", "http://127.0.0.1:8471", "127.0.0.1:9092", file, "token", topic, is_own)


def test_the_hint_is_a_short_command_for_each_answer_of_the_service() -> None:
    assert set(links().cases) == {"good", "slow", "flaky", "later", "stuck", "refused", "poison"}
    for case in links().cases:
        *words, value = links().producing(case)
        assert " ".join(words) == (
            f"reconsume dev produce --brokers 127.0.0.1:9092 --header order-case={Case(case)} orders"
        )
        assert json.loads(value)
    assert dict(links().rows())["api"] == "http://127.0.0.1:8471/status"


def test_the_first_page_is_that_of_the_group() -> None:
    dashboard = dict(links().rows())["dashboard"]
    assert dashboard.startswith("http://127.0.0.1:8473/sign-in?who=dev&")
    assert links().token not in dashboard, "a link that stays on a screen opens nothing once it was used"


def test_a_second_one_in_the_same_folder_writes_a_log_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "reconsume.dev-up.log"
    file.write_text("of an earlier one", "utf-8")
    with own_log(file) as first:
        first.write_text("of the first", "utf-8")
        with own_log(file) as second:
            assert (second.name, second.read_text("utf-8")) == ("reconsume.dev-up.2.log", "")
            assert second.stat().st_mode & 0o077 == 0
        assert first.read_text("utf-8") == "of the first", "it was not emptied"
    with own_log(file) as later:
        assert (later, later.read_text("utf-8")) == (file, "")


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(SetupError, match=r"dev-up\.log: the sidecar's log cannot be written"),
        own_log(tmp_path / "none" / "reconsume.dev-up.log"),
    ):
        pass


def test_a_displaced_port_is_told_with_the_file_for_the_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for displaced in ((), (9092, 8471)):
        tell(Options(format=Format.JSONL), links()._replace(displaced=displaced))
        said = capsys.readouterr().err
        assert [port for port in (9092, 8471, 8473) if f"port {port} is in use" in said] == list(displaced)
        assert ("give each command -c reconsume.yaml" in said) == bool(displaced)


def test_a_service_of_ones_own_gets_no_header_of_the_sample_service() -> None:
    *words, value = links("invoices", is_own=True).producing("flaky")
    assert words[-1] == "invoices"
    assert "--header" not in words
    assert json.loads(value)
    in_order = links("invoices", is_own=True)._replace(key="customer-7").producing("flaky")
    assert in_order[-4:] == ("--key", "customer-7", "invoices", value), "one without a key would wait alone"
