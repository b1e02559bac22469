"""docs/security.md: its configurations are good ones, to our loader and to the Kafka client, and its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from reconsume.sidecar.kafka.client_check import property_faults
from reconsume.sidecar.settings import Settings, load
from tests.support.canary import CANARY, betrays
from tests.support.kafka.certificates import Authority
from tests.support.sidecar.cli import reconsume

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^### (.+?)\n.*?^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
CLAIMS_NOTHING = (
    "| a namespace | set it",
    "The overlay `dev` is for trials only",
    "Each line names the test",
    "What is out of scope",
    "In private, as [SECURITY.md]",
)
"""How the blocks of the page begin that advise, or tell of others."""
NEED_KAFKA = ("reconsume doctor", "reconsume acls plan")
"""They have tests of their own: here they need only be understood."""


def mounted(folder: Path, text: str) -> str:
    """An example, with its mounts below `folder`, and something in each file."""
    certificate, key = Authority(folder / "ca", "example").issue("localhost")
    held = {".key": key, ".crt": certificate, "password": CANARY.encode()}
    for path in {
        *re.findall(r"/etc/([\w./-]+\.\w+|[\w/-]+/password)", text),
        "kafka-user/user.crt",
        "kafka-user/user.key",
    }:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(next(content for end, content in held.items() if path.endswith(end)))
    return text.replace("/etc/", f"{folder}/")


def loaded(folder: Path, text: str) -> Settings:
    file = folder / "reconsume.yaml"
    file.write_text(mounted(folder, text), encoding="utf-8")
    return load(file, environ={})


def test_the_page_has_an_example_of_each_way_to_log_in() -> None:
    assert [name for name, _ in EXAMPLES] == [
        "TLS and SCRAM",
        "A KafkaUser of Strimzi",
        "Mutual TLS from other mounts",
        "OAUTHBEARER with an OIDC provider",
    ]


def claims() -> list[str]:
    """Each paragraph, list item and table row of the page, but for code, headings, and what heads a table."""
    text = re.sub(r"^```.*?^```$", "", PAGE.split("## The tests behind the numbers")[0], flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\|.*\|\n\|[-|]+\|$", "", text, flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?=\||[0-9]\. )", text)
    return [block.strip() for block in blocks if block.strip() and not block.strip().startswith("#")]


def test_every_claim_names_the_test_that_holds_it() -> None:
    """By a footnote, or in the second column of the limits; what claims nothing is listed here."""
    bare = [block for block in claims() if not re.search(r"\[\^[\w-]+\]|`tests/\S+::test_\w+` \|$", block)]
    assert [block for block in bare if not block.startswith(CLAIMS_NOTHING)] == []
    assert [words for words in CLAIMS_NOTHING if not any(block.startswith(words) for block in bare)] == []


def test_every_test_that_is_named_exists_and_every_footnote_is_asked_for() -> None:
    named = re.findall(r"`(tests/\S+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 80
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"
    told = re.findall(r"^\[\^([\w-]+)\]: `tests/", PAGE, re.MULTILINE)
    assert sorted(told) == sorted(set(re.findall(r"\[\^([\w-]+)\](?!:)", PAGE)))


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_an_example_is_a_good_configuration(tmp_path: Path, name: str, text: str) -> None:
    settings = loaded(tmp_path, text)
    assert property_faults(settings.kafka) == ()
    assert settings.kafka["security.protocol"] in ("SSL", "SASL_SSL")
    assert not betrays(repr(settings))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_runs_on_an_example(tmp_path: Path, line: str) -> None:
    loaded(tmp_path, EXAMPLES[0][1])
    words = [*shlex.split(line)[1:], "-c", str(tmp_path / "reconsume.yaml")]
    done = reconsume(*words, *(["--help"] if line.startswith(NEED_KAFKA) else []))
    assert done.exit_code == 0, done.stderr
    assert not betrays(done.stdout + done.stderr)


def test_what_is_said_of_files_and_events_is_so() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[2].glob("sidecar/**/*.py"))
    for event in re.findall(r"`((?:credentials|kafka)-[a-z]+)`", PAGE):
        assert f'"event": "{event}"' in sources, event
