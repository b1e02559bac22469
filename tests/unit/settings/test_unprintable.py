"""Characters that nobody sees: in a setting they are refused by name, from wherever they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sidecar.settings import GOOD, good, problems, write_good

BIDI = "\u202e"
TOLD = "U+202E (RIGHT-TO-LEFT OVERRIDE)"
URL = f"http://127.0.0.1:8080/{BIDI}stneve"
SIGNS = {
    "a control character": ("\x07", "U+0007"),
    "an escape": ("\x1b[2J", "U+001B"),
    "a C1 control": ("\x9b", "U+009B"),
    "a tab": ("\t", "U+0009"),
    "a direction": (BIDI, TOLD),
    "an isolate": ("\u2066", "U+2066 (LEFT-TO-RIGHT ISOLATE)"),
    "a mark": ("\u200f", "U+200F (RIGHT-TO-LEFT MARK)"),
    "nothing": ("\u200b", "U+200B (ZERO WIDTH SPACE)"),
    "a tag": ("\U000e0041", "U+E0041 (TAG LATIN CAPITAL LETTER A)"),
    "another space": ("\u00a0", "U+00A0 (NO-BREAK SPACE)"),
    "half a character": ("\udcff", "U+DCFF"),
}
TEXTS = {
    "deliver.url": "http://127.0.0.1:8080/{}",
    "deliver.health_url": "unix:/run/{}/app.sock:/health",
    "api.listen": "unix:/run/{}/api.sock",
    "api.probe_listen": "{}:8472",
    "api.token_file": "/run/{}",
    "ui.listen": "a{}b:8473",
    "operators.token_file": "/run/{}",
    "operators.audit_file": "/run/{}",
    "view.folder": "/var/{}",
    "kafka_secret": "/etc/{}",
    "kafka.bootstrap.servers": "kafka{}:9092",
    "kafka.ssl.ca.location": "/etc/{}.crt",
    "kafka.sasl.password.file": "/etc/{}",
    "kafka.sasl.oauthbearer.token.endpoint.url": "https://login.example.org/{}",
    "kafka.client.id": "{}",
}


@pytest.mark.parametrize("name", SIGNS)
def test_a_url_with_a_character_that_nobody_sees_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    sign, told = SIGNS[name]
    (found,) = problems(write_good(tmp_path), [f"deliver.url=http://127.0.0.1:8080/a{sign}b"])
    assert found.startswith("deliver.url = http://127.0.0.1:8080/a")
    assert f": has {told}, which cannot be seen; leave it out" in found


@pytest.mark.parametrize("key", TEXTS)
def test_no_text_setting_takes_one(tmp_path: Path, key: str) -> None:
    assert [one for one in problems(write_good(tmp_path), [f"{key}={TEXTS[key].format(BIDI)}"]) if TOLD in one]


def test_it_is_refused_from_the_file_a_variable_and_the_command_line(tmp_path: Path) -> None:
    written = tmp_path / "reconsume.yaml"
    written.write_text(GOOD.replace("http://127.0.0.1:8080/events", f'"{URL}"'), encoding="utf-8")
    ways = [
        problems(written),
        problems(write_good(tmp_path), environ={"RECONSUME_DELIVER__URL": URL}),
        problems(write_good(tmp_path), [f"deliver.url={URL}"]),
    ]
    origins = []
    for (found,) in ways:
        assert found.startswith(f"deliver.url = http://127.0.0.1:8080/\\u202estneve: has {TOLD}")
        origins.append(found.rpartition(" (")[2].rstrip(")"))
    assert origins == [f"{written}, line 6", "RECONSUME_DELIVER__URL", "--set"]


def test_an_unknown_key_that_nobody_can_read_is_shown_by_its_escapes(tmp_path: Path) -> None:
    (found,) = problems(write_good(tmp_path, f'"{BIDI}lru": x\n'))
    assert found.startswith("\\u202elru: unknown key")


def test_a_password_may_have_any_character_and_a_certificate_its_lines(tmp_path: Path) -> None:
    """Given what others chose, or a value with the line end of its Secret, then it is taken as it is."""
    pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    given = {"sasl.password": f"p\x07{BIDI}", "ssl.ca.pem": pem, "bootstrap.servers": "kafka:9092\n"}
    settings = good(tmp_path, *(f"kafka.{name}={value}" for name, value in given.items()))
    assert {name: settings.kafka[name] for name in given} == given
