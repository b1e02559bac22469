"""The services of `examples/services`, each with its real framework, on a free port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.service.real_services import program, until_it_listens

EXAMPLES = Path(__file__).parents[3] / "examples" / "services"
FETCHED_WITHIN = 400
"""Seconds for npm or Maven to fetch a framework, and for a compiler to build the service."""
MADE: dict[str, Path] = {}
"""The folders that npm and Maven have filled in this process, by framework: they are used again."""


def fastapi(_: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "uvicorn", "orders:app", "--port", str(port)]


def flask(_: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "flask", "--app", "orders", "run", "--port", str(port)]


def django(_: Path, port: int) -> list[str]:
    return [sys.executable, "orders.py", "runserver", "--noreload", str(port)]


def node(_: Path, _port: int) -> list[str]:
    return [program("node"), "orders.js"]


def express(folder: Path, port: int) -> list[str]:
    made = MADE.get("express")
    if made is None:
        install = [program("npm"), "install", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(install, cwd=folder, check=True, timeout=FETCHED_WITHIN)
        MADE["express"] = folder / "node_modules"
    else:
        (folder / "node_modules").symlink_to(made)
    return node(folder, port)


def go(folder: Path, _port: int) -> list[str]:
    subprocess.run(
        [program("go"), "build", "-o", "orders", "orders.go"], cwd=folder, check=True, timeout=FETCHED_WITHIN
    )
    return [str(folder / "orders")]


def spring(folder: Path, _port: int) -> list[str]:
    java = program("java")
    build = [program("mvn"), "--quiet", "--batch-mode", "package"]
    subprocess.run(build, cwd=folder, check=True, timeout=FETCHED_WITHIN)
    return [java, "-jar", "target/orders-1.0.jar"]


FRAMEWORKS: dict[str, Callable[[Path, int], list[str]]] = {
    "fastapi": fastapi,
    "flask": flask,
    "django": django,
    "node": node,
    "go": go,
    "express": express,
    "spring": spring,
}
FETCHED = ("express", "spring")
"""Frameworks that npm or Maven fetches."""


@contextmanager
def example(name: str, folder: Path, *changes: tuple[str, str]) -> Iterator[str]:
    """Run one of them as long as the block, with texts of its files replaced; the URL to post to."""
    copy = folder / name
    shutil.copytree(EXAMPLES / name, copy, ignore=shutil.ignore_patterns("node_modules", "target", "__pycache__"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    left = dict([*changes, ("8080", str(port))])
    for file in filter(Path.is_file, copy.rglob("*")):
        text = file.read_text(encoding="utf-8")
        for old in [old for old in left if old in text]:
            text = text.replace(old, left[old])
            if old != "8080":
                del left[old]
        file.write_text(text, encoding="utf-8")
    assert set(left) == {"8080"}, "the example has the texts that are to be replaced"
    command = FRAMEWORKS[name](copy, port)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=copy) as process:
        try:
            until_it_listens(process, port)
            yield f"http://127.0.0.1:{port}/events"
        finally:
            process.kill()
