"""docs/kubernetes.md says what is there: each command in it works, each component, annotation and figure is true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from reconsume.sidecar.deploy.annotations import annotation, names
from reconsume.sidecar.deploy.container import memory_limit
from reconsume.sidecar.settings import load
from tests.support.kubernetes.kubectl import K8S, documents, run
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.command_lines import parsed
from tests.support.sidecar.process import REPOSITORY

DOCS = REPOSITORY / "docs"
TEXT = (DOCS / "kubernetes.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
NEEDS_KAFKA = ("topics export",)
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: billing}
spec: {template: {spec: {containers: [{name: billing, image: x:1}]}}}
"""


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_works(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = shlex.split(line.partition(" > ")[0])
    if program != "reconsume":
        done = run(program, *(word.replace("deploy/", f"{REPOSITORY}/deploy/") for word in words))
        assert done.returncode == 0, done.stderr
        assert documents(done.stdout)
        return
    (tmp_path / "deploy.yaml").write_text(DEPLOYMENT)
    (tmp_path / "reconsume.yaml").write_text((K8S / "example" / "reconsume.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    if parsed(words)[0] not in NEEDS_KAFKA:
        shown = reconsume(*words)
        assert shown.exit_code == 0, shown.stderr
        assert documents(shown.stdout)


def test_every_component_and_overlay_is_told_of() -> None:
    for part in ("components", "overlays"):
        for folder in (K8S / part).iterdir():
            assert re.search(rf"(?<![\w-]){folder.name}(?![\w-])", TEXT), folder.name


def test_every_annotation_and_its_option_is_told_of() -> None:
    table = TEXT[TEXT.index("| annotation") : TEXT.index("`--remove` takes")]
    for name in names():
        assert annotation(name).partition("/")[2] in table, name
    for option in set(re.findall(r"`(--[\w-]+)`", table)):
        parsed(["inject", "-f", "x", option, *([] if option == "--plain" else ["y"])])


def test_the_figures_of_memory_are_those_of_the_formula() -> None:
    assert f"The defaults give {memory_limit()}Mi" in " ".join(TEXT.split())
    assert f"`buffer_memory: 64MiB` {memory_limit(buffer_memory=64 << 20)}Mi" in TEXT
    assert f"`concurrency: 4096`\n{memory_limit(concurrency=4096)}Mi" in TEXT


def test_the_configuration_shown_for_strimzi_is_that_of_the_overlay() -> None:
    block = next(block for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) if "kafka_secret" in block)
    overlay = yaml.safe_load((K8S / "overlays" / "strimzi" / "reconsume.yaml").read_text())
    assert yaml.safe_load(block).items() <= overlay.items()
    load(K8S / "overlays" / "strimzi" / "reconsume.yaml", (), {})


def test_the_replacement_shown_for_the_runbook_is_that_of_the_overlay() -> None:
    block = next(block for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) if "replacements" in block)
    overlay = yaml.safe_load((K8S / "overlays" / "keda" / "kustomization.yaml").read_text())
    assert yaml.safe_load(block).items() <= overlay.items()


def test_every_page_that_is_linked_is_there() -> None:
    for page in ("kubernetes.md", "adopt.md"):
        for link in re.findall(r"\]\(([\w/.-]+\.md)", (DOCS / page).read_text(encoding="utf-8")):
            assert (DOCS / link).exists(), f"{page}: {link}"
