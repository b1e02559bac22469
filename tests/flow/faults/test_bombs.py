"""Records made to fill the memory of whoever reads them: no reader of a topic takes more than it promises."""

from __future__ import annotations

import base64
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from reconsume.sidecar.dlq.archive import LONGEST_LINE, MOST_LINES
from reconsume.topics.dead_letter_headers import dead_letter_headers
from reconsume.topics.render_headers import render_retry_headers
from reconsume.topics.retry_headers import Headers, RetryState
from reconsume.topics.retry_order import Order
from tests.cli.terminal.test_process import environ
from tests.flow.conftest import FreshGroup
from tests.support.deadline import until
from tests.support.kafka.bombs import BOMBS, fill
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, GroupTopics, create_group, fresh_group
from tests.support.kafka.topic_io import create_topic, produce
from tests.support.proof.frugal import Frugal
from tests.support.rings import inner
from tests.support.service.behaviours import FAIL, OK, Behaviour, Request
from tests.support.service.service import Service
from tests.support.sidecar.config import config_of
from tests.support.sidecar.process import SidecarProcess
from tests.support.sidecar.redrive import dead_letter

LIMIT = 200
"""MiB of its own that a sidecar and each command may have at most: a container's limit is 256 (docs/security.md).

Beside them stand 25 MiB of programs and libraries, which the system drops and reads again where memory is short."""
SECONDS = 120.0
ALL = "all kinds"
EACH, ALONE = 3, 20
"""Records of each kind in a topic with all kinds, or of the only kind: taken together they would fill the limit."""
PACKED = 60
"""Records more of a main topic which one fetch of 64 KiB would bring all at once."""
RUN = """
import sys
from pathlib import Path
from reconsume.sidecar.__main__ import main
peak = Path(sys.argv.pop(1))
try:
    main()
finally:
    peak.write_text(Path("/proc/self/status").read_text())
"""
"""The command line, which notes at its end the most memory that it has had. `getrusage` would tell the parent's."""

READERS = {
    "list": ["dlq", "list", "--limit", "5"],
    "show": ["dlq", "show", "{id}"],
    "export": ["dlq", "export"],
    "redrive": ["dlq", "redrive", "--yes"],
    "purge": ["dlq", "purge", "--until", "1s", "--dry-run"],
    "import": ["dlq", "import", "{file}", "--yes"],
    "audit": ["audit"],
    "doctor": ["doctor"],
    "policy": ["policy", "history"],
    "blocked": ["retries", "list", "--blocked", "--set", "deliver.order=key", "--set", "retry.ordered_ladder=[10s]"],
}
"""The commands that read topics record by record."""


def kinds_of(kind: str) -> list[str]:
    """The kinds of the records that a topic is filled with."""
    return list(BOMBS) * EACH if kind == ALL else [kind] * ALONE


def letter(group: GroupTopics, number: int) -> Headers:
    """The headers of a dead letter. All are stays of two records."""
    life = RetryState(f"{group.main}:0:{number % 2}", group.main, 2, number // 2, 7, 5, 6, "http-500: no")
    return [*render_retry_headers(life, group.group, group.dlq), *dead_letter_headers(life, group.group, 3)]


def waiting(group: GroupTopics, topic: str, number: int, order: Order | None = None) -> Headers:
    """The headers of a copy that waits and has been due for long."""
    life = RetryState(f"{group.main}:0:{number}", group.main, 1, 0, 7, 5, 6, "http-500: no", order=order)
    return render_retry_headers(life, group.group, topic)


@pytest.fixture(params=inner(ALL, (ALL, *BOMBS)), scope="module")
def bombed(request: pytest.FixtureRequest, kafka: Broker) -> GroupTopics:
    """A group whose topics hold nothing but bombs."""
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    queue = group.names.ordered(group.main)
    create_topic(kafka.bootstrap, queue)
    kinds = kinds_of(request.param)
    level = next(iter(group.levels))
    fill(group.bootstrap, group.dlq, kinds, lambda number: letter(group, number))
    fill(group.bootstrap, level, kinds, lambda number: waiting(group, level, number))
    fill(group.bootstrap, queue, kinds, lambda number: waiting(group, queue, number, Order(number)))
    for topic in (group.main, group.names.events, group.names.policy, group.names.view):
        fill(group.bootstrap, topic, kinds)
    return group


def run(group: GroupTopics, folder: Path, words: Sequence[str]) -> tuple[int, float]:
    """Run a command to its end: its code, and the most memory that it has had, in MiB."""
    file, peak = folder / "reconsume.yaml", folder / "peak"
    file.write_text(yaml.safe_dump(config_of(group, "http://127.0.0.1:1/", 8471)), encoding="utf-8")
    command = [sys.executable, "-c", RUN, str(peak), *words, "-c", str(file)]
    with (folder / "out").open("wb") as out, (folder / "told").open("wb") as told:
        code = subprocess.run(command, env=environ(), stdout=out, stderr=told, timeout=SECONDS, check=False).returncode
    return code, most_of(peak.read_text())


@pytest.mark.long  # the sidecar below reads the same topics
@pytest.mark.parametrize("reader", READERS)
def test_no_command_takes_more_than_it_promises(reader: str, bombed: GroupTopics, tmp_path: Path) -> None:
    """Given topics of bombs, when a command reads them, then it stays below the limit."""
    words = [word.format(id=f"{bombed.main}:0:0", file=tmp_path / "letters.jsonl") for word in READERS[reader]]
    if reader == "import":
        run(bombed, tmp_path, ["dlq", "export"])
        (tmp_path / "out").rename(tmp_path / "letters.jsonl")
    code, peak = run(bombed, tmp_path, words)
    assert code in (0, 1, 3), (tmp_path / "told").read_text()[-2_000:]
    logging.getLogger(__name__).info("%s: %.0f MiB", reader, peak)
    assert peak < LIMIT, (reader, peak)


def lines_without_end(kind: str, line: str) -> Iterator[str]:
    """The lines of a file that is made to fill the memory of an import. `line`: a sound one of this group."""
    sound = json.loads(line)
    headers = json.dumps(sound["headers"])
    match kind:
        case "headers":
            yield line.replace(headers, "[" + '["",null],' * (LONGEST_LINE // 11) + headers[1:])
        case "value":
            yield json.dumps({**sound, "value_base64": "A" * (LONGEST_LINE // 4 * 4 - 10_000)})
        case "unknown fields":
            yield json.dumps({**sound, "more": [[]] * (LONGEST_LINE // 5)})
        case "two fields of one name":
            yield line[:-1] + f', "headers": {headers}' * (LONGEST_LINE // len(headers) - 100) + "}"
        case "lines":
            ident = base64.b64encode(sound["id"].encode()).decode()
            for number in range(MOST_LINES):
                other = f"{sound['id'].rpartition(':')[0]}:{number}"
                yield line.replace(ident, base64.b64encode(other.encode()).decode())


@pytest.mark.parametrize(
    "kind",
    ["headers", "value", "unknown fields", "two fields of one name", pytest.param("lines", marks=pytest.mark.long)],
)
def test_no_file_makes_an_import_take_more_than_it_promises(kind: str, new_group: FreshGroup, tmp_path: Path) -> None:
    """Given a file of as many bytes, headers or lines as it may have, or more, then an import stays below the limit."""
    group = create_group(new_group(), partitions=1, also=UNUSED)
    produce(group.bootstrap, group.dlq, [dead_letter(group, 1)])
    run(group, tmp_path, ["dlq", "export"])
    line = (tmp_path / "out").read_text().strip()
    file = tmp_path / "letters.jsonl"
    with file.open("w", encoding="utf-8") as letters:
        letters.writelines(f"{one}\n" for one in lines_without_end(kind, line))
    code, peak = run(group, tmp_path, ["dlq", "import", str(file), "--dry-run" if kind == "lines" else "--yes"])
    told = (tmp_path / "told").read_text()
    logging.getLogger(__name__).info("%s: %d, %.0f MiB, %s", kind, code, peak, told[-200:])
    assert code in (0, 1, 3, 78), told[-2_000:]
    assert peak < LIMIT, (kind, peak)


def most_of(status: str) -> float:
    """The most memory of its own that a process has had, in MiB. `status`: of /proc, at its end."""
    peak, files = (re.search(rf"{name}:\s+(\d+) kB", status) for name in ("VmHWM", "RssFile"))
    assert peak is not None
    assert files is not None
    return (int(peak[1]) - int(files[1])) / 1024


def fails_once(request: Request) -> Behaviour:
    """Each record fails when it comes from the main topic, and is taken when it comes back."""
    return FAIL if request.times == 0 else OK


def test_a_sidecar_takes_no_more_than_it_promises(new_group: FreshGroup, tmp_path: Path) -> None:
    """Given bombs in all topics that a sidecar reads, when they fail and come back, then it stays below the limit."""
    group = create_group(new_group(), partitions=2, also=UNUSED)
    kinds = kinds_of(ALL) + ["packed values"] * PACKED
    level = next(iter(group.levels))
    fill(group.bootstrap, group.main, kinds)
    fill(group.bootstrap, level, kinds_of(ALL), lambda number: waiting(group, level, 1_000 + number))
    for topic in (group.names.policy, group.names.view):
        fill(group.bootstrap, topic, kinds_of(ALL))
    with (
        Service(Frugal(tmp_path / "ledger"), fails_once) as service,
        SidecarProcess(
            group, service.url, tmp_path, overrides={"view": {"enabled": True, "source": "spark"}}, fresh=True
        ) as sidecar,
    ):
        until(lambda: len(service.ledger.taken()) >= len(kinds) + len(kinds_of(ALL)), SECONDS, "all are taken")
        peak = most_of(Path(f"/proc/{sidecar.pid}/status").read_text(encoding="ascii"))
        logging.getLogger(__name__).info("the sidecar: %.0f MiB", peak)
        assert peak < LIMIT, peak
        assert sidecar.stop(60).code == 0
