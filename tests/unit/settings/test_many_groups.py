"""A configuration that names groups in `ui.groups` instead of one: what it needs, and who takes it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings import load
from tests.support.sidecar.cli import reconsume

MANY = "kafka: {bootstrap.servers: 'b:1'}\nui: {groups: [billing, 'ship-*']}\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "many.yaml"
    file.write_text(text)
    return file


def test_it_needs_only_kafka(tmp_path: Path) -> None:
    settings = load(written(tmp_path, MANY), (), {}, many=True)
    assert (settings.group, settings.topics, settings.ui.groups) == ("", (), ("billing", "ship-*"))
    assert reconsume("config", "check", "-c", written(tmp_path, MANY)).exit_code == 0


def test_what_needs_one_group_refuses_it_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--group NAME"):
        load(written(tmp_path, MANY), (), {})
    shown = reconsume("run", "-c", written(tmp_path, MANY))
    assert (shown.exit_code, "--group NAME" in shown.stderr) == (78, True)


def test_a_group_without_topics_is_still_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="topics: is required"):
        load(written(tmp_path, MANY + "group: billing\n"), (), {}, many=True)


@pytest.mark.parametrize("name", ["bill ing", "", "a/b"])
def test_a_name_that_no_group_can_have_is_a_fault(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"ui\.groups\[0\]"):
        load(written(tmp_path, f"kafka: {{bootstrap.servers: 'b:1'}}\nui: {{groups: ['{name}']}}\n"), (), {}, many=True)


def test_group_is_refused_where_the_file_is_about_another_one(tmp_path: Path) -> None:
    text = (
        "group: billing\ntopics: [orders]\ndeliver: {url: 'http://127.0.0.1:1/'}\nkafka: {bootstrap.servers: 'b:1'}\n"
    )
    shown = reconsume("holds", "--group", "other", "-c", written(tmp_path, text))
    assert (shown.exit_code, "the file is about billing" in shown.stderr) == (78, True)


def test_a_container_needs_no_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given no reconsume.yaml here, then the file is read that our manifests mount."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["reconsume.sidecar.settings.load"], "CONTAINER_FILE", written(tmp_path, MANY))
    assert load(None, (), {}, many=True).ui.groups == ("billing", "ship-*")
    (tmp_path / "reconsume.yaml").write_text(MANY.replace("billing", "here"))
    assert load(None, (), {}, many=True).ui.groups[0] == "here"
