"""No property of librdkafka that loads a library or runs a command gets in, by whatever way a configuration comes.

Which there are is asked of the library itself, which carries its own documentation: an upgrade that brings another one
fails here.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import confluent_kafka
import pytest

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.kafka import check_property
from reconsume.sidecar.settings.load import load
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import problems, write_good

SUSPICIOUS = re.compile(r"librar|engine|provider|\bshell\b|command|execut|plugin|dedicated API|local file", re.I)
HARMLESS = {
    "builtin.features": "it only asks what the library was built with",
    "debug": "`plugin` is a kind of log line there",
    "ssl.ca.certificate.stores": "Windows alone",
    "ssl.ca.location": "certificates",
    "https.ca.location": "certificates",
    "sasl.oauthbearer.grant.type": "one of two words",
    "sasl.oauthbearer.assertion.algorithm": "one of two words",
}
"""Documented in such words, and looked at: neither loads nor runs anything."""
NATIVE = ("plugin.library.paths", "ssl.engine.location", "ssl.engine.id", "ssl.providers", "sasl.kerberos.kinit.cmd")


def documented(tmp_path: Path) -> dict[str, str]:
    """Every property of the loaded librdkafka, with its documentation."""
    assert confluent_kafka.libversion()  # it is loaded
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    (path,) = {line.split()[-1] for line in maps.splitlines() if "librdkafka" in line}
    library, c, file = ctypes.CDLL(path), ctypes.CDLL(None), tmp_path / "properties.md"
    c.fopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(c.fopen(bytes(file), b"w"))
    library.rd_kafka_conf_properties_show(stream)
    c.fclose(stream)
    rows = [line.split(" | ") for line in file.read_text(encoding="utf-8").splitlines() if " | " in line]
    return {row[0].strip(): row[-1] for row in rows}


def is_taken(name: str) -> bool:
    try:
        check_property(name, "other")
    except ValueError:
        return False
    return True


def test_what_the_library_documents_as_code_is_refused_or_was_looked_at(tmp_path: Path) -> None:
    properties = documented(tmp_path)
    assert len(properties) > 150
    assert set(NATIVE) <= properties.keys()
    suspicious = {name for name, text in properties.items() if SUSPICIOUS.search(text)}
    assert {name for name in suspicious if is_taken(name)} <= HARMLESS.keys()


@pytest.mark.parametrize("name", NATIVE)
def test_it_is_refused_by_file_by_environment_and_by_set(tmp_path: Path, name: str) -> None:
    file = write_good(tmp_path)
    said = f"kafka.{name} = /tmp/x: cannot be set: it "
    variable = "RECONSUME_KAFKA__" + name.upper().replace(".", "_")
    assert any(said in problem for problem in problems(file, [f"kafka.{name}=/tmp/x"]))
    with pytest.raises(ConfigError, match=re.escape(said)):
        load(file, environ={variable: "/tmp/x"})
    file.write_text(file.read_text().replace("9092", f"9092\n  {name}: /tmp/x"))
    assert any(said in problem for problem in problems(file))


@pytest.mark.parametrize("name", ["sasl.kerberos.keytab", "sasl.kerberos.principal", "sasl.kerberos.service.name"])
@pytest.mark.parametrize("value", ["$(touch x)", "a;b", "a b", "`a`", 'a"b', "a|b", "a\nb", "%{a}", "-a", ""])
def test_nothing_gets_into_the_command_that_the_library_has_run_for_kerberos(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="a shell reads it"):
        check_property(name, value)


def test_names_and_paths_of_kerberos_are_taken() -> None:
    assert check_property("sasl.kerberos.principal", "billing/host-1.example.org@EXAMPLE.ORG")
    assert check_property("sasl.kerberos.keytab", "/etc/krb5/billing_1.keytab")
    assert check_property("ssl.providers", "default,legacy")


def test_config_check_refuses_it_before_the_library_hears_of_it(tmp_path: Path) -> None:
    shown = reconsume("config", "check", "-c", write_good(tmp_path), "--set", "kafka.plugin.library.paths=/no/such.so")
    assert (shown.exit_code, "it loads a library" in shown.stderr) == (78, True)
    assert "cannot open shared object" not in shown.stderr
