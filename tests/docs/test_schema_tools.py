"""The published schema is a schema for the tools that read it, and each of them takes every example."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconsume.sidecar.settings.reference import MODELINE, SCHEMA_FILE, json_schema
from tests.docs.test_example_warnings import CONFIGURATIONS, configuration_in
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.process import REPOSITORY
from tests.support.sidecar.settings import GOOD

SCHEMA = REPOSITORY / "docs" / "config.schema.json"
INIT = ("--group", "billing", "--topics", "orders", "--bootstrap-servers", "localhost:9092")
BAD = GOOD + "start: newest\n"
PATTERNS = """
const walk = (node, found) => {
  if (node && typeof node === "object")
    for (const [key, value] of Object.entries(node))
      key === "pattern" && typeof value === "string" ? found.push(value) : walk(value, found);
  return found;
};
const found = walk(JSON.parse(require("fs").readFileSync(process.argv[1], "utf8")), []);
const bad = found.filter((pattern) => { try { new RegExp(pattern, "u"); return false; } catch { return true; } });
console.log(JSON.stringify({ count: found.length, bad }));
"""
AJV = """
const { readFileSync } = require("fs"), Ajv = require("ajv/dist/2020");
const validate = new Ajv({ allErrors: true }).compile(JSON.parse(readFileSync(process.argv[1], "utf8")));
const trees = JSON.parse(readFileSync(process.argv[2], "utf8"));
console.log(JSON.stringify(Object.keys(trees).filter((name) => !validate(trees[name]))));
"""
PACKAGES = ("ajv@8.20.0", "yaml-language-server@2.0.0")


def examples(folder: Path) -> dict[str, Any]:
    """Every configuration of the pages and of deploy/, completed, and those that `init` writes."""
    trees = {name: configuration_in(text) for name, text in CONFIGURATIONS.items()}
    for mode in ("push", "pull", "relay"):
        file = folder / mode / "reconsume.yaml"
        url = ("--url", "http://127.0.0.1:8080/events") if mode == "push" else ("--mode", mode)
        assert reconsume("init", *INIT, *url, "-c", file).exit_code == 0
        trees[mode] = yaml.safe_load(file.read_text("utf-8"))
    assert len(trees) > 20
    return trees


def run(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_every_pattern_is_one_in_unicode_mode_of_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no program to read the schema: node")
    told = json.loads(run(node, "-e", PATTERNS, SCHEMA, folder=tmp_path).stdout)
    assert told["count"] > 50
    assert told["bad"] == []


def test_check_jsonschema_takes_every_example_and_refuses_a_wrong_file(tmp_path: Path) -> None:
    for number, tree in enumerate(examples(tmp_path).values()):
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(tree), "utf-8")
    check = (REPOSITORY / ".venv" / "bin" / "check-jsonschema", "--schemafile", SCHEMA)
    found = run(*check, *sorted(tmp_path.glob("*.yaml")), folder=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    (tmp_path / "bad.yaml").write_text(BAD, "utf-8")
    assert "start" in run(*check, "bad.yaml", folder=tmp_path).stdout


def test_the_schema_has_a_name_and_init_writes_it_beside_the_file_that_refers_to_it(tmp_path: Path) -> None:
    assert json_schema()["$id"] == "urn:reconsume:config"
    file = tmp_path / "k8s" / ".." / "reconsume.yaml"
    words = (*INIT, "--mode", "pull", "--kubernetes", tmp_path / "k8s")
    assert reconsume("init", *words, "-c", file).exit_code == 0
    assert (tmp_path / "reconsume.yaml").read_text("utf-8").startswith(MODELINE)
    assert json.loads((tmp_path / SCHEMA_FILE).read_text("utf-8")) == json_schema()
    assert "yaml-language-server" not in (tmp_path / "k8s" / "reconsume.yaml").read_text("utf-8")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no program to read the schema: npm")
    folder = tmp_path_factory.mktemp("npm")
    installed = run(npm, "install", "--silent", "--no-audit", "--no-fund", *PACKAGES, folder=folder)
    assert installed.returncode == 0, installed.stderr
    return folder


@pytest.mark.long
def test_ajv_with_its_defaults_takes_every_example_and_refuses_a_wrong_file(packages: Path, tmp_path: Path) -> None:
    trees = examples(tmp_path) | {"bad": yaml.safe_load(BAD)}
    (packages / "trees.json").write_text(json.dumps(trees), "utf-8")
    refused = run("node", "-e", AJV, SCHEMA, "trees.json", folder=packages)
    assert json.loads(refused.stdout or refused.stderr) == ["bad"]


class LanguageServer:
    """The server behind the YAML support of editors, spoken to as an editor does, on its pipes."""

    def __init__(self, packages: Path, folder: Path) -> None:
        program = packages / "node_modules" / "yaml-language-server" / "bin" / "yaml-language-server"
        self._process = subprocess.Popen(
            ["node", str(program), "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
        )
        self._send(
            {"id": 1, "method": "initialize", "params": {"processId": None, "rootUri": None, "capabilities": {}}}
        )
        next(message for message in self._messages() if message.get("id") == 1)
        self._send({"method": "initialized", "params": {}})

    def diagnostics(self, file: Path) -> list[str]:
        """What it says of a file."""
        document = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": file.read_text("utf-8")}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        for message in self._messages():
            told = message.get("params") or {}
            if message.get("method") == "textDocument/publishDiagnostics" and told["uri"] == document["uri"]:
                return [one["message"] for one in told["diagnostics"]]
        raise AssertionError("the server ended")

    def close(self) -> None:
        self._process.kill()
        with self._process:  # closes the pipes
            self._process.wait(timeout=10)

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Every message; its questions are answered by nothing."""
        out = self._process.stdout
        assert out is not None
        while head := out.readline():
            length = int(head.partition(b":")[2])
            while out.readline().strip():
                pass
            message = json.loads(out.read(length))
            if "id" in message and "method" in message:
                self._send({"id": message["id"], "result": [None] * len(message.get("params", {}).get("items", []))})
            yield message


@pytest.mark.long
@pytest.mark.timeout(120)
def test_an_editor_takes_every_example_and_marks_a_wrong_value_by_the_first_line_alone(
    packages: Path, tmp_path: Path
) -> None:
    trees = examples(tmp_path)
    shutil.copy(tmp_path / "push" / SCHEMA_FILE, tmp_path)
    server = LanguageServer(packages, tmp_path)
    try:
        for number, tree in enumerate(trees.values()):
            file = tmp_path / f"{number}.yaml"
            file.write_text(MODELINE + yaml.safe_dump(tree), "utf-8")
            assert server.diagnostics(file) == [], file.read_text("utf-8")
        bad = tmp_path / "bad.yaml"
        bad.write_text(MODELINE + BAD, "utf-8")
        assert any("earliest" in text for text in server.diagnostics(bad))
    finally:
        server.close()
