"""The dashboard in the sidecar: its switch, and what must be given before it is open to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.settings.addresses import Listen
from reconsume.sidecar.settings.load import effective, load, load_with_origins
from tests.support.sidecar.settings import good, problems, write_good

ON = "ui.enabled=true"
TOKEN, AUDIT = "operators.token_file=/run/token", "operators.audit_file=/var/log/ui.jsonl"


def test_it_is_off_unless_asked_for_and_then_on_loopback(tmp_path: Path) -> None:
    settings = good(tmp_path)
    ui, token_file = settings.ui, settings.operators.token_file
    assert (ui.enabled, ui.listen, token_file) == (False, Listen("127.0.0.1", 8473), None)


@pytest.mark.parametrize("text", ["ui: true\n", "ui:\n  enabled: true\n"])
def test_true_is_short_for_enabled(tmp_path: Path, text: str) -> None:
    assert load(write_good(tmp_path, text), (), {}).ui.enabled


def test_the_short_form_can_be_added_to_and_keeps_its_origin(tmp_path: Path) -> None:
    file = write_good(tmp_path, "ui: true\n")
    loaded = load_with_origins(file, ["ui.listen=127.0.0.1:9000"], {"RECONSUME_VIEW": "true"})
    assert (loaded.settings.ui.enabled, loaded.settings.ui.listen.port) == (True, 9000)
    assert loaded.settings.view.enabled
    origins = {row.key: row.origin for row in effective(loaded)}
    assert origins["ui.enabled"].startswith(f"{file}, line ")
    assert (origins["ui.listen"], origins["view.enabled"]) == ("--set", "RECONSUME_VIEW")


def test_the_short_form_leaves_the_rest_of_the_section(tmp_path: Path) -> None:
    file = write_good(tmp_path, "ui: {listen: '127.0.0.1:9000'}\n")
    assert load(file, ["ui=true"], {}).ui.listen.port == 9000
    assert not load(file, ["ui=true", "ui=false"], {}).ui.enabled


def test_a_section_without_a_switch_is_not_true(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), ["pull=true"])
    assert problem.startswith("pull = true: must be a mapping")


@pytest.mark.parametrize(
    ("sets", "begin"),
    [
        (
            (ON, "ui.listen=0.0.0.0:8473"),
            "ui.listen = 0.0.0.0:8473: is outside loopback, and needs operators.token_file",
        ),
        ((ON, TOKEN), "operators.audit_file: is required with operators.token_file"),
        ((ON, "ui.listen=127.0.0.1:8471"), "ui.listen = 127.0.0.1:8471: is the same as api.listen"),
        ((ON, "ui.listen=127.0.0.1:8472"), "ui.listen = 127.0.0.1:8472: is the same as api.probe_listen"),
        ((ON, "deliver.broadcast=true"), "ui.enabled = true: has no effect in broadcast mode"),
        (("ui.read=signed-in",), "ui.read = signed-in: needs operators.token_file"),
        (("ui.read=closed",), "ui.read = closed: must be open or signed-in or null"),
        (("ui.listen=elsewhere",), "ui.listen = elsewhere: must be host:port"),
        (("ui.hosts=[a b]",), "ui.hosts"),
    ],
)
def test_what_would_open_it_by_mistake_is_refused(tmp_path: Path, sets: tuple[str, ...], begin: str) -> None:
    (problem,) = problems(write_good(tmp_path), sets)
    assert problem.startswith(begin)


def test_with_a_token_and_a_log_it_may_be_open(tmp_path: Path) -> None:
    assert good(tmp_path, ON, TOKEN, AUDIT, "ui.listen=0.0.0.0:8473", "ui.hosts=[retry.example]").ui.enabled


FAR = ("ui.listen=0.0.0.0:8473", "ui.hosts=[retry.example]", TOKEN, AUDIT)


@pytest.mark.parametrize(
    ("sets", "read"),
    [
        ((), "open"),
        ((ON,), "open"),
        (("api.token_file=/run/service",), "open"),
        ((TOKEN,), "signed-in"),
        ((ON, TOKEN, AUDIT), "signed-in"),
        ((ON, *FAR), "signed-in"),
        ((ON, *FAR, "ui.read=open"), "open"),
        ((TOKEN, "ui.read=signed-in"), "signed-in"),
    ],
)
def test_values_need_a_sign_in_as_soon_as_somebody_can_sign_in(
    tmp_path: Path, sets: tuple[str, ...], read: str
) -> None:
    assert good(tmp_path, *sets).read == read


def test_what_is_off_is_in_nobodys_way(tmp_path: Path) -> None:
    assert not good(tmp_path, "ui.listen=127.0.0.1:8471", TOKEN).ui.enabled
