"""`init`: the configuration that it writes, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from reconsume.sidecar.deploy.starter.configuration import Answers, configuration, faults_of
from reconsume.sidecar.http.tokens import read_tokens
from tests.support.sidecar.cli import reconsume

URL = "http://127.0.0.1:8080/events"
COMMON = ("--group", "billing", "--topics", "orders, invoices", "--bootstrap-servers", "kafka-1:9092,kafka-2:9092")
MODES = {"push": ("--url", URL), "pull": ("--mode", "pull"), "relay": ("--mode", "relay")}
"""Those with a sidecar."""
EVERY = {**MODES, "spark": ("--mode", "spark")}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


def refused(shown: Result, *words: str) -> None:
    """The command wrote nothing, and said why in one sentence."""
    assert (shown.exit_code, shown.stdout) == (78, "")
    assert shown.stderr.startswith("reconsume: configuration: ")
    assert shown.stderr.count("\n") == 1
    assert shown.stderr.rstrip("\n").isprintable()
    assert all(word in shown.stderr for word in words), shown.stderr


@pytest.mark.parametrize("mode", EVERY)
def test_the_file_passes_the_check_and_says_what_was_given(mode: str) -> None:
    shown = reconsume("init", *COMMON, *EVERY[mode])
    assert (shown.exit_code, shown.stdout) == (0, "")
    checked = reconsume("config", "check")
    assert checked.exit_code == 0, checked.stderr
    said = yaml.safe_load(Path("reconsume.yaml").read_text("utf-8"))
    assert said["group"] == "billing"
    assert said["topics"] == ["orders", "invoices"]
    assert said["kafka"] == {"bootstrap.servers": "kafka-1:9092,kafka-2:9092"}
    assert (said["deliver"]["mode"], said["deliver"].get("url")) == (mode, URL if mode == "push" else None)


@pytest.mark.parametrize("mode", EVERY)
def test_each_line_is_explained_and_each_other_value_is_the_default(mode: str) -> None:
    reconsume("init", *COMMON, *EVERY[mode])
    lines = Path("reconsume.yaml").read_text("utf-8").splitlines()
    for above, line in pairwise(lines):
        assert not line or line.lstrip().startswith("#") or above.lstrip().startswith("# "), line
    own = {"group", "topics", "kafka.bootstrap.servers", "deliver.mode", "deliver.url"}
    written = {row["key"]: row["value"] for row in rows_of("-c", "reconsume.yaml")}
    Path("bare.yaml").write_text(bare(mode), "utf-8")
    assert written == {row["key"]: row["value"] for row in rows_of("-c", "bare.yaml")}
    assert own - {"deliver.url"} <= set(written)


def rows_of(*words: str) -> list[dict[str, Any]]:
    shown = reconsume("config", "show", "-o", "json", *words)
    assert shown.exit_code == 0, shown.stderr
    rows: list[dict[str, Any]] = yaml.safe_load(shown.stdout)
    return rows


def bare(mode: str) -> str:
    """A configuration that says the answers alone."""
    deliver = {"url": URL} if mode == "push" else {"mode": mode}
    kafka = {"bootstrap.servers": "kafka-1:9092,kafka-2:9092"}
    return yaml.safe_dump({"group": "billing", "topics": ["orders", "invoices"], "kafka": kafka, "deliver": deliver})


def test_the_next_commands_are_told() -> None:
    shown = reconsume("init", *COMMON, *MODES["push"], "-c", "other.yaml", "--compose")
    for command in ("config check -c other.yaml", "topics apply -c other.yaml", "run -c other.yaml"):
        assert f"reconsume {command}" in shown.stderr
    assert "docker compose -f compose.yaml up" in shown.stderr
    assert "make image" in shown.stderr, "no registry has it"


def test_for_spark_queries_there_is_no_sidecar_to_run_or_to_put_into_a_pod() -> None:
    shown = reconsume("init", *COMMON, *EVERY["spark"])
    assert "reconsume topics apply" in shown.stderr
    assert "rules_from('reconsume.yaml', name=…)" in shown.stderr
    assert "reconsume run" not in shown.stderr
    checked = reconsume("config", "check")
    assert (checked.exit_code, "has no effect" in checked.stderr) == (0, False), checked.stderr
    refused(reconsume("init", *COMMON, *EVERY["spark"], "--compose", "--force"), "deliver.mode = spark")
    for words in (["run"], ["drain"]):
        refused(reconsume(*words), "deliver.mode = spark: Spark queries consume the group, and no sidecar runs")


def test_a_dry_run_prints_and_writes_nothing() -> None:
    shown = reconsume("init", *COMMON, *MODES["push"], "--dry-run")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert list(Path().iterdir()) == []
    reconsume("init", *COMMON, *MODES["push"])
    assert shown.stdout == Path("reconsume.yaml").read_text("utf-8")
    several = reconsume("init", *COMMON, *MODES["push"], "--dry-run", "--compose", "--kubernetes", "k8s").stdout
    for name in ("reconsume.yaml", "compose.yaml", "k8s/deployment.yaml", "k8s/kustomization.yaml"):
        assert f"# {name}\n" in several


def test_a_file_that_is_there_stays_unless_it_is_forced() -> None:
    Path("compose.yaml").write_text("mine\n", "utf-8")
    words = ("init", *COMMON, *MODES["push"], "--compose")
    refused(reconsume(*words), "compose.yaml", "already", "--force")
    assert Path("compose.yaml").read_text("utf-8") == "mine\n"
    assert not Path("reconsume.yaml").exists(), "all files are written, or none"
    assert reconsume(*words, "--force").exit_code == 0
    assert "mine" not in Path("compose.yaml").read_text("utf-8")
    assert Path("reconsume.yaml").exists()


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("--group", "bil ling", "group"),
        ("--group", "billing\x1b[31m", "group"),
        ("--group", "billing\nkafka: {}", "group"),
        ("--group", "Rechnung-ü", "group"),
        ("--group", "b" * 250, "group"),
        ("--topics", "orders,in voices", "topics[1]"),
        ("--topics", "orders: {}", "topics[0]"),
        ("--topics", "$(id)", "topics[0]"),
        ("--topics", " , ", "topics"),
        ("--topics", "billing-DLQ", "topics"),
        ("--bootstrap-servers", "kafka", "host:port"),
        ("--bootstrap-servers", "kafka:0", "host:port"),
        ("--bootstrap-servers", "kafka:9092,\x1b]0;x\x07:1", "bootstrap.servers"),
        ("--bootstrap-servers", "kafka:9092\nacks: 0", "host:port"),
        ("--mode", "carrier-pigeon", "push or pull or relay"),
        ("--url", "ftp://127.0.0.1/x", "deliver.url"),
        ("--url", "http://example.org/events", "loopback"),
        ("--url", "http://127.0.0.1:99999/", "deliver.url"),
        ("--url", "http://127.0.0.1:8080/\x1b[2J\n", "deliver.url"),
        ("--url", "http://127.0.0.1:8080/\x1b[2J", "deliver.url"),
        ("--url", "http://127.0.0.1:8080/\u202e", "deliver.url"),
        ("--url", "http://127.0.0.1:8080/\udc80", "deliver.url"),
    ],
)
def test_a_wrong_value_is_one_sentence(name: str, value: str, word: str) -> None:
    words = [*COMMON, *MODES["push"]]
    if name in words:
        words[words.index(name) + 1] = value
    else:
        words += [name, value]
    refused(reconsume("init", *words), word)
    assert list(Path().iterdir()) == []


def test_all_wrong_values_are_told_at_once() -> None:
    shown = reconsume("init", "--group", "a b", "--topics", "c d", "--bootstrap-servers", "e", "--url", "f")
    assert shown.exit_code == 78
    assert shown.stderr.count("\n") == 4


@pytest.mark.parametrize("word", ["-o", "--set"])
def test_options_without_an_effect_are_wrong_usage(word: str) -> None:
    value = "json" if word == "-o" else "retry.ladder=pulsar"
    assert reconsume("init", *COMMON, *MODES["push"], word, value).exit_code == 2


def test_without_a_terminal_the_missing_options_are_named() -> None:
    shown = reconsume("init", "--topics", "orders", stdin="billing\n")
    assert (shown.exit_code, shown.stdout) == (2, "")
    said = " ".join(shown.stderr.split())
    assert "no terminal to ask on. These are missing: --group GROUP --bootstrap-servers HOST:PORT --url URL, or" in said
    assert list(Path().iterdir()) == []


def test_a_name_that_yaml_could_misread_stays_a_name() -> None:
    for name in ("1", "1.5", "true", "null", "0x1f", "2026-01-01", "1_000", "-"):
        answers = Answers(name, (name,), "kafka:9092", "pull")
        assert faults_of(answers) == []
        said = yaml.safe_load(configuration(answers))
        assert (said["group"], said["topics"]) == (name, [name])


def test_an_operators_token_is_in_a_file_of_its_own_and_nowhere_else(tmp_path: Path) -> None:
    """Given all that `init` can write, then the token is in a file for its owner alone, which git ignores, and the
    Secret's command is printed; run again, it keeps token and .gitignore."""
    Path(".gitignore").write_text("*.pyc", "utf-8")
    shown = reconsume("init", *COMMON, *MODES["push"], "--compose", "--kubernetes", "k8s")
    assert shown.exit_code == 0, shown.stderr
    file = Path("reconsume-operators.token")
    token = file.read_text("ascii").strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert not read_tokens(file).fault
    assert f"kubectl create secret generic reconsume-ui --from-file=token={file}" in shown.stderr
    assert Path(".gitignore").read_text("utf-8") == f"*.pyc\n{file}\n"
    others = [path for path in tmp_path.rglob("*") if path.is_file() and path != tmp_path / file]
    assert [path for path in others if token in path.read_text("utf-8")] == []
    assert token not in shown.stdout + shown.stderr
    again = reconsume("init", *COMMON, *MODES["push"], "--force")
    assert again.exit_code == 0, again.stderr
    assert file.read_text("ascii").strip() == token
    assert Path(".gitignore").read_text("utf-8").count(str(file)) == 1


def test_a_dry_run_makes_no_token(tmp_path: Path) -> None:
    assert reconsume("init", *COMMON, *MODES["push"], "--dry-run").exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_the_token_file_can_be_named_at_once() -> None:
    assert reconsume("init", *COMMON, *MODES["push"]).exit_code == 0
    named = ("--set", "operators.token_file=reconsume-operators.token")
    assert reconsume("config", "check", *named).exit_code == 0
