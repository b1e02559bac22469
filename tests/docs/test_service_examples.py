"""The services of `docs/service.md` in several languages: each runs as it stands, and the client reads why it fails."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Outcome, Rejected
from tests.support.service.real_services import program, until_it_listens
from tests.support.sidecar.push_client import a_push, a_record, deliver, run, settled

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
SERVICES = dict(re.findall(r"<!-- service: (\w+) -->\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))


def go(file: Path) -> list[str]:
    subprocess.run([program("go"), "build", "-o", file.with_suffix(""), file], check=True, timeout=300)
    return [str(file.with_suffix(""))]


RUN: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "python": ("service.py", lambda file: [sys.executable, str(file)]),
    "js": ("service.js", lambda file: [program("node"), str(file)]),
    "go": ("main.go", go),
    "java": ("Service.java", lambda file: [program("java"), str(file)]),
}


NO_ORDERS = (b"no json", b"{}", b"", b"null", b"[1]", b"7", b'{"sku"')
"""Values of records that hold no order: each has an answer that says so."""


@contextmanager
def running(language: str, folder: Path) -> Iterator[str]:
    """The service as the page has it, on another port; the address to post to."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = SERVICES[language]
    assert code.count("8080") == 1
    name, command = RUN[language]
    (folder / name).write_text(code.replace("8080", str(port)), encoding="utf-8")
    words = command(folder / name)
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder) as process:
        try:
            until_it_listens(process, port)
            yield f"http://127.0.0.1:{port}/events"
        finally:
            process.kill()


def test_the_page_has_a_service_in_each_language() -> None:
    assert set(SERVICES) == set(RUN)
    for words in ("SpringApplication.run", "WebApplication.CreateBuilder"):
        assert words in PAGE


@pytest.mark.parametrize("language", RUN)
def test_the_service_takes_what_it_knows_and_says_why_it_refuses_the_rest(language: str, tmp_path: Path) -> None:
    """Given the page's service, when it gets orders that it knows and one that it does not, then its reason is read."""
    found: list[Outcome] = []
    with running(language, tmp_path) as url:

        async def work() -> None:
            push = a_push(url, failure_text="problem", dead_letter_statuses=frozenset({400, 422}))
            values = [b'{"sku": "A-17"}', b'{"sku": "A-99"}', *NO_ORDERS, b'{"sku": "A-17"}']
            for number, value in enumerate(values):
                found.append(await deliver(push, a_record(number, value)))
            push.close()
            await settled(lambda: push.connections == 0)

        run(work)
    first, unknown, *refused, last = found
    assert (first, last) == (COMMITTED, COMMITTED), "it takes the next one after all that are none"
    assert unknown == Rejected("http-422", "unknown sku: A-99 is not in the catalogue")
    for value, outcome in zip(NO_ORDERS, refused, strict=True):
        assert isinstance(outcome, Rejected), (value, outcome)
        assert (outcome.reason, outcome.text.startswith("no order: ")) == ("http-400", True), (value, outcome)
