"""The Containerfile and its locks as files: nothing unpinned gets in, nobody is root, the locks are current."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[3]
IMAGE = ROOT / "deploy" / "image"
TARGETS = ("sidecar", "spark")


class Stage(NamedTuple):
    """One stage: what it is built on, and its instructions, each with its text on one line."""

    base: str
    steps: list[tuple[str, str]]

    def of(self, word: str) -> list[str]:
        """The texts of all instructions of one kind."""
        return [text for kind, text in self.steps if kind == word]


@pytest.fixture(scope="module")
def stages() -> dict[str, Stage]:
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", (IMAGE / "Containerfile").read_text("utf-8")))
    found: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, text = line.partition(" ")
        if word == "FROM":
            base, name = text.split(" AS ")
            found[name] = Stage(base, [])
        elif found:
            list(found.values())[-1].steps.append((word, " ".join(text.split())))
    return found


def locked(name: str) -> dict[str, tuple[Version, list[str]]]:
    """By package: its version, and the hashes of its files."""
    text = re.sub(r" +\\\n +", " ", (IMAGE / name).read_text("utf-8"))
    found = {}
    for line in filter(None, text.splitlines()):
        requirement, *hashes = line.split(" --hash=")
        one = Requirement(requirement)
        found[one.name] = Version(str(one.specifier).removeprefix("==")), hashes
    return found


def test_every_stage_stands_on_another_or_on_a_base_that_the_caller_pins(stages: dict[str, Stage]) -> None:
    assert set(TARGETS) <= stages.keys()
    for stage in stages.values():
        assert stage.base in (*stages, "${BASE}", "${SPARK_BASE}")
        assert not stage.of("ADD")
        assert not stage.of("HEALTHCHECK"), "the kubelet has probes; a second one only disturbs"


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_shipped_ends_as_a_user_who_is_not_root_and_has_labels(stages: dict[str, Stage], target: str) -> None:
    stage = stages[target]
    assert re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", stage.of("USER")[-1]), "runAsNonRoot knows numbers alone"
    assert stage.steps.index(("USER", stage.of("USER")[-1])) > max(
        (number for number, (word, _) in enumerate(stage.steps) if word in ("RUN", "COPY")), default=0
    )
    labels = " ".join(stage.of("LABEL"))
    for name in ("title", "description", "licenses", "version", "revision", "created", "base.name"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_packages_are_installed_by_hash_or_from_the_wheel_just_built(stages: dict[str, Stage]) -> None:
    pinned = [stage for name, stage in stages.items() if name != "init"]
    commands = [part for stage in pinned for text in stage.of("RUN") for part in text.split(" && ")]
    installs = [command for command in commands if " install " in command or "pip wheel" in command]
    assert len(installs) == 6
    for command in installs:
        assert ("--require-hashes --only-binary :all:" in command) != ("--no-deps --no-index" in command), command
    assert not [command for command in commands if re.search(r"\b(curl|wget|apt-get)\b", command)]


def test_debian_signs_the_init_process_and_nothing_else(stages: dict[str, Stage]) -> None:
    assert stages["init"].base == "${BASE}"
    assert stages["init"].of("RUN") == ["apt-get update && apt-get install --yes --no-install-recommends tini"]
    assert [text for stage in stages.values() for text in stage.of("COPY") if "--from=init" in text] == [
        "--from=init /usr/bin/tini-static /usr/bin/tini"
    ]
    assert stages["sidecar"].of("ENTRYPOINT")[0].startswith('["/usr/bin/tini", "-s", "--", ')


def test_the_sidecar_starts_without_a_shell(stages: dict[str, Stage]) -> None:
    assert all(text.startswith("[") for word in ("ENTRYPOINT", "CMD") for text in stages["sidecar"].of(word))
    assert not stages["sidecar"].of("RUN")


def test_all_code_that_the_wheel_holds_is_copied(stages: dict[str, Stage]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    copied = {text.split()[0] for text in stages["build"].of("COPY")}
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= copied


def test_every_dependency_has_a_version_above_which_it_is_not_taken() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    assert len(asked) > 15
    for wanted in map(Requirement, asked):
        assert {bound.operator for bound in wanted.specifier} - {"!="} == {">=", "<"}, wanted


@pytest.mark.parametrize("name", ["requirements.lock", "tools.lock"])
def test_every_locked_package_has_hashes(name: str) -> None:
    packages = locked(name)
    assert len(packages) > 3
    for package, (_, hashes) in packages.items():
        assert hashes, package
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), package


def test_the_locks_hold_what_the_project_asks_for() -> None:
    """Given a change of pyproject.toml, then `make lock` is due."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = locked("requirements.lock")
    extra = project["project"]["optional-dependencies"]["otel"]  # a setting switches it on, so the image has it
    for wanted in map(Requirement, [*project["project"]["dependencies"], *extra]):
        assert wanted.specifier.contains(packages[wanted.name][0]), f"{wanted}: make lock"
    tools = locked("tools.lock")
    asked = [*(IMAGE / "tools.in").read_text("utf-8").splitlines(), *project["build-system"]["requires"]]
    for wanted in map(Requirement, asked):
        assert wanted.specifier.contains(tools[wanted.name][0]), f"{wanted}: make lock"
