"""When a running sidecar looks at mounted credentials, and what it takes for new ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from reconsume.sidecar.kafka.credentials import watcher
from reconsume.sidecar.kafka.credentials.reachability import Unreachable
from reconsume.sidecar.kafka.credentials.watcher import LOOK_EVERY, CredentialWatcher, registry_of
from reconsume.sidecar.settings import load
from tests.support.deadline import until


def mount(folder: Path, version: str, password: str) -> None:
    """Swap a folder as the kubelet does: the files lead to a link, which leads to another folder afterwards."""
    (folder / version).mkdir(parents=True)
    (folder / version / "password").write_text(password)
    (folder / "..fresh").symlink_to(version)
    (folder / "..fresh").rename(folder / "..data")
    if not (folder / "password").is_symlink():
        (folder / "password").symlink_to("..data/password")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the thread waits between two looks; here it does not, and Kafka takes everything."""
    found: list[float] = []

    def wait(self: object, seconds: float) -> bool:
        found.append(seconds)
        return len(found) > 200

    def answers(kafka: Mapping[str, str]) -> list[str] | Unreachable:
        return ["127.0.0.1:1"]

    monkeypatch.setattr(watcher.StopRequest, "wait", wait)
    monkeypatch.setattr(watcher, "answers", answers)
    return found


def test_a_file_is_looked_at_every_two_seconds_and_a_variable_never_again(
    tmp_path: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a link that is swapped and a variable that changes, then the file's new value is handed out alone."""
    mount(tmp_path / "user", "first", "one")
    file = tmp_path / "reconsume.yaml"
    file.write_text(
        "group: g\ntopics: [t]\ndeliver: {url: 'http://127.0.0.1:1/'}\nkafka:\n  bootstrap.servers: x:1\n"
        f"  sasl.mechanism: PLAIN\n  sasl.password.file: {tmp_path}/user/password\n"
    )
    name = "RECONSUME_KAFKA__SASL_USERNAME"
    kafka = load(file, (), {name: "me"}).kafka
    registry = registry_of(kafka)
    monkeypatch.setenv(name, "somebody-else")
    mount(tmp_path / "user", "second", "two")
    thread = CredentialWatcher(kafka, registry, lambda: False)
    thread._worn = watcher.digest_of(load(file, (), {name: "me"}).kafka)._replace(login=b"")  # of the first password
    thread.start()
    until(lambda: registry.newest.properties["sasl.password"] == "two", 10, "the new password is handed out")
    thread.stop()
    thread.join(10)
    assert "somebody-else" not in registry.newest.properties.values()
    assert {*waits} == {LOOK_EVERY} == {2.0}
