"""The samples of the pages about Spark run as they are printed, in their order, by a reader who has a broker alone.

The only substitution is the broker's address: the pages have `localhost:9092`. The reader has the topic `orders`, the
repository's `examples`, its wheel in `dist`, and a PostgreSQL with the database `retries`. A sidecar writes
what the readers' page shows.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from confluent_kafka import KafkaException

from reconsume.topics.events import State
from reconsume.topics.levels import SIX
from reconsume.topics.names import Kind
from reconsume.topics.reasons import reason_class
from tests.flow.view.page_session import Session
from tests.support.deadline import until
from tests.support.kafka.broker import embedded
from tests.support.kafka.group_topics import GroupTopics, create_group
from tests.support.kafka.topic_io import Out, create_topic, dump, produce
from tests.support.kafka.view_topics import event, tell, view_of
from tests.support.postgres import installed_postgres
from tests.support.service.behaviours import OK, Behaviour, Request, verdict
from tests.support.service.service import Service
from tests.support.sidecar.process import SidecarProcess

ROOT = Path(__file__).parents[3]
PAGES = ("spark.md", "spark-consumers.md")
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PRINTED = "localhost:9092"
SECONDS = 240.0
GOOD, SOLD_OUT = b'{"customer": "c-1", "sku": "tea", "stock": 3}', b'{"customer": "c-2", "sku": "salt", "stock": 0}'
NOBODYS, BROKEN = b'{"sku": "tea", "stock": 1}', b"not JSON"
FAILED = {"out-of-stock": 1, "no-customer": 1}
"""Reasons of what fails of the first three."""


class Block(NamedTuple):
    """A block of code of a page: its language, the file that it is (empty: none), and its text."""

    language: str
    file: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(*found) for found in FENCE.findall((ROOT / "docs" / page).read_text("utf-8"))]


@pytest.mark.parametrize("page", PAGES)
def test_no_sample_leaves_anything_out(page: str) -> None:
    assert blocks(page)
    assert [block for block in blocks(page) if "..." in block.text or "…" in block.text] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_sample_has_a_language_that_this_test_runs(page: str) -> None:
    fences = re.findall(r"^```(.*)$", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(blocks(page)), "a fence without a language"
    assert {block.language for block in blocks(page)} <= {"python", "sh", "yaml", "properties", "json"}


@pytest.mark.parametrize("page", PAGES)
def test_what_each_sample_imports_is_there(page: str) -> None:
    for block in blocks(page):
        if block.language == "python":
            imports = [node for node in ast.parse(block.text).body if isinstance(node, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(imports, []), page, "exec"), {})


def end(process: subprocess.Popen[bytes]) -> None:
    """End commands that run for ever, and what they started."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Reader:
    """Somebody who reads a page and does what it says, in a folder and with a broker."""

    def __init__(self, folder: Path, bootstrap: str, **environment: str) -> None:
        self.folder, self.bootstrap = folder, bootstrap
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **environment}

    def own(self, text: str) -> str:
        """A block's text with the reader's broker."""
        return text.replace(PRINTED, self.bootstrap)

    def write(self, block: Block) -> None:
        """Keep a block as the file that it says it is."""
        (self.folder / block.file).write_text(self.own(block.text), "utf-8")

    def start(self, block: Block) -> subprocess.Popen[bytes]:
        """Start the commands of a block in a process group of their own."""
        with (self.folder / "shell.log").open("wb") as log:
            command = ["bash", "-euo", "pipefail", "-c", self.own(block.text)]
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, block: Block) -> None:
        """Run a block's commands to their end, which must be good."""
        process = self.start(block)
        until(lambda: process.poll() is not None, SECONDS, "the commands have ended")
        assert process.returncode == 0, self.said()[-4000:]

    def run_while(self, block: Block, predicate: Callable[[], bool], what: str) -> None:
        """Run a block's commands, which do not end, until something has happened."""
        process = self.start(block)
        try:
            until(lambda: process.poll() is not None or predicate(), SECONDS, what)
            assert process.poll() is None, self.said()[-4000:]
        finally:
            end(process)

    def said(self) -> str:
        """What the last commands said."""
        return (self.folder / "shell.log").read_text("utf-8", errors="replace")

    def copies(self, *topics: str) -> Counter[str]:
        """How often each reason is in these topics of the group."""
        rows = (row for topic in topics for row in dump(self.bootstrap, f"billing-{topic}"))
        return Counter(reason_class(str(dict(row.headers)["RETRY_REASON"], "utf-8")) for row in rows)

    def states(self) -> set[str]:
        """The states of the records in the group's view topic; none before it exists."""
        try:
            return {str(row["state"]) for row in view_of(self.bootstrap, "billing").values()}
        except KafkaException:
            return set()


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A broker with three orders. It is the test's alone, as the pages give names that other tests may use."""
    with embedded() as kafka:
        create_topic(kafka.bootstrap, "orders", 2)
        produce(kafka.bootstrap, "orders", [Out(value) for value in (GOOD, SOLD_OUT, NOBODYS)])
        yield kafka.bootstrap


def service(request: Request) -> Behaviour:
    """What the handler of the consumers' page does."""
    order = json.loads(request.value or b"")
    if "customer" not in order:
        return verdict("dead-letter; reason=no-customer")
    return OK if order["stock"] else verdict("retry; delay=10m; reason=out-of-stock")


@pytest.fixture(scope="module")
def billing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose group `billing` has a dead letter, and a record that waits."""
    folder = tmp_path_factory.mktemp("billing")
    with embedded() as kafka:
        group = create_group(GroupTopics(kafka.bootstrap, "billing", ("orders",), SIX), also=(Kind.POLICY,))
        produce(kafka.bootstrap, "orders", [Out(value) for value in (GOOD, SOLD_OUT, NOBODYS)])
        with Service(folder / "ledger.jsonl", service) as served, SidecarProcess(group, served.url, folder / "sidecar"):
            reader = Reader(folder, kafka.bootstrap)
            until(lambda: reader.copies("RETRY-5m", "DLQ") == FAILED, SECONDS, "both have failed")
        yield kafka.bootstrap


@pytest.fixture
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository's wheel."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "uv", "build", "-q", "--wheel", "--out-dir", folder, ROOT], check=True, timeout=300
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def database() -> Iterator[dict[str, str]]:
    """How libpq reaches a PostgreSQL with the database that the page names."""
    with installed_postgres() as dsn:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE retries")
        said = psycopg.conninfo.conninfo_to_dict(dsn)
        yield {"PGHOST": str(said["host"]), "PGUSER": str(said["user"])}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_consumers_page(bootstrap: str, wheel: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path, bootstrap)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "dist").mkdir()
    shutil.copy(wheel, tmp_path / "dist")
    code = [block for block in blocks("spark-consumers.md") if block.language == "python"]
    handler, try_it, by_handler, by_table, by_frames, mend = code
    files = [block for block in blocks("spark-consumers.md") if block.file]
    topics, cluster = (block for block in blocks("spark-consumers.md") if block.language == "sh")
    for block in files:
        reader.write(block)
    reader.run(topics)
    with Session(tmp_path, reader.environment) as session:
        session.run(reader.own(handler.text))
        session.run(reader.own(try_it.text))
        first = reader.own(by_handler.text)
        session.run(first)
        session.until(lambda: reader.copies("RETRY-5m", "DLQ") == FAILED, "both verdicts are carried out", again=first)
        produce(bootstrap, "orders", [Out(BROKEN)])
        session.until(
            lambda: reader.copies("RETRY-10s")["JSONDecodeError"] >= 1, "an exception is retried", again=first
        )
        assert "shipped c-1" in session.said()

        produce(bootstrap, "orders", [Out(SOLD_OUT)])
        rows = reader.own(by_table.text)
        session.run(rows)
        session.until(lambda: reader.copies("RETRY-10s")["out-of-stock"] >= 1, "its row is retried", again=rows)

        produce(bootstrap, "orders", [Out(GOOD), Out(SOLD_OUT)])
        frames = reader.own(by_frames.text)
        session.run(frames)
        session.until(lambda: reader.copies("RETRY-5m")["out-of-stock"] >= 2, "its row is retried", again=frames)
        session.run("query.processAllAvailable(); query.stop()")
        session.run(reader.own(mend.text))
        assert "redriven=1, copies=0, not_open=0, unknown=0" in session.said()
        session.run("assert [row['value'] for row in spark.read.parquet('shipped').collect()]")
    produce(bootstrap, "orders", [Out(SOLD_OUT)])
    reader.run_while(cluster, lambda: reader.copies("RETRY-30m")["out-of-stock"] >= 1, "the example retries one")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_tables_of_the_readers_page(billing: str, database: dict[str, str], tmp_path: Path) -> None:
    reader = Reader(tmp_path, billing, **database)
    with Session(tmp_path, reader.environment) as session:
        for block in blocks("spark.md"):
            if block.language == "python" and not block.file:
                session.run(reader.own(block.text))
        session.run("for query in spark.streams.active: query.processAllAvailable()")
        shown = session.said()
    assert re.search(r"\|\s*orders\|no-customer\|\s*1\|", shown), "dead letters by reason"
    assert re.search(r"\|\s*Drinks\|no-customer\|\s*1\|", shown), "joined with a table of one's own"
    assert re.search(r"\|\s*orders\|out-of-stock\|", shown), "what waits"
    with psycopg.connect(host=database["PGHOST"], user=database["PGUSER"], dbname="retries") as connection:
        rows = connection.execute("SELECT state, reason FROM retry_view").fetchall()
    assert ("DLQ", "no-customer") in rows


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_lakehouse_of_the_readers_page(billing: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path, billing)
    (lakehouse,) = (block for block in blocks("spark.md") if block.file == "lake.py")
    (submit,) = (block for block in blocks("spark.md") if block.language == "sh" and "lake.py" in block.text)
    reader.write(lakehouse)
    reader.run(submit)
    assert list((tmp_path / "spark-warehouse" / "retries").glob("**/*.parquet"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_job_of_the_readers_page(billing: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path, billing)
    for block in blocks("spark.md"):
        if block.file:
            reader.write(block)
    run, submit = (b for b in blocks("spark.md") if b.language == "sh" and "lake.py" not in b.text)
    reader.run_while(run, lambda: "DLQ" in reader.states(), "the view has the dead letter")
    tell(billing, [event("billing", 1, State.DISMISSED)])
    reader.run_while(submit, lambda: "DISMISSED" in reader.states(), "the view has a new event")
