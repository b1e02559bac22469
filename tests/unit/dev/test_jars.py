"""Jars come from a Maven repository exactly as the lock says, or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from reconsume.sidecar.dev.kafka.releases import USUAL, lock_of
from reconsume.sidecar.errors import ConfigError, SetupError
from reconsume.sidecar.java.jars import MAVEN_CENTRAL, Jar, cache_folder, fetch, maven_mirror, read_lock

QUICK = 0.01


class Repository:
    """A Maven repository on loopback that answers by script: for each path a list of (status, body, promised)."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, bytes, int]]] = {}
        self.asked: list[str] = []
        self.meeting = threading.Barrier(1)
        """Half of each body is sent, then as many requests as it says must meet before the rest follows."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/maven"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def has(self, name: str, body: bytes, *before: tuple[int, bytes, int]) -> Jar:
        """Serve a jar, after the answers `before`."""
        jar = Jar("org.example", name, "1.0", hashlib.sha256(body).hexdigest(), len(body))
        self.answers[f"/maven/org/example/{name}/1.0/{name}-1.0.jar"] = [*before, (200, body, len(body))]
        return jar

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                repository.asked.append(self.path)
                left = repository.answers.get(self.path, [(404, b"", 0)])
                status, body, promised = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                self.send_header("Content-Length", str(promised))
                self.end_headers()
                with suppress(ConnectionError):  # whoever refuses an answer hangs up
                    self.wfile.write(body[: len(body) // 2])
                    repository.meeting.wait(60)
                    self.wfile.write(body[len(body) // 2 :])

            def log_message(self, *_: object) -> None:
                """Say nothing on stderr."""

        return Handler


@pytest.fixture
def repository() -> Iterator[Repository]:
    repository = Repository()
    yield repository
    repository.close()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_jars_are_fetched_once_in_the_order_of_the_lock(repository: Repository, tmp_path: Path) -> None:
    jars = [repository.has(name, name.encode() * 1000) for name in ("c", "a", "b")]
    first = fetch(jars, tmp_path, mirror=repository.url)
    assert [path.read_bytes() for path in first] == [b"c" * 1000, b"a" * 1000, b"b" * 1000]
    assert fetch(jars, tmp_path, mirror=repository.url) == first
    assert len(repository.asked) == 3


def test_a_jar_with_another_hash_is_refused_and_not_cached(repository: Repository, tmp_path: Path) -> None:
    good = repository.has("evil", b"good")
    repository.has("evil", b"evil")
    with pytest.raises(SetupError, match=r"org\.example:evil:1\.0 .* is not the jar of the lock: SHA-256"):
        fetch([good], tmp_path, mirror=repository.url, first_wait=QUICK)
    assert files(tmp_path) == []


def test_a_jar_that_is_longer_than_the_lock_says_is_given_up(repository: Repository, tmp_path: Path) -> None:
    good = repository.has("endless", b"good")
    repository.has("endless", b"x" * 50_000_000)
    written: list[int] = []
    with pytest.raises(SetupError, match=r"is not the jar of the lock: it has more than 4 bytes"):
        fetch([good], tmp_path, mirror=repository.url, first_wait=QUICK, progress=lambda done, _: written.append(done))
    assert (files(tmp_path), max(written, default=0)) == ([], 0)


def test_a_cached_jar_that_was_changed_is_fetched_again(repository: Repository, tmp_path: Path) -> None:
    jar = repository.has("a", b"good")
    [path] = fetch([jar], tmp_path, mirror=repository.url)
    path.write_bytes(b"rust")
    assert fetch([jar], tmp_path, mirror=repository.url)[0].read_bytes() == b"good"


def test_a_jar_that_is_not_there_is_named_and_asked_for_once(repository: Repository, tmp_path: Path) -> None:
    missing = Jar("org.example", "gone", "1.0", "0" * 64, 1)
    with pytest.raises(SetupError, match=r"org\.example:gone:1\.0 from http.*: HTTP 404"):
        fetch([missing], tmp_path, mirror=repository.url, first_wait=QUICK)
    assert len(repository.asked) == 1


@pytest.mark.parametrize(
    "before",
    [(503, b"", 0), (429, b"", 0), (200, b"goo", 400)],
    ids=["a busy server", "a limit", "a body cut short"],
)
def test_what_may_pass_is_tried_again(repository: Repository, tmp_path: Path, before: tuple[int, bytes, int]) -> None:
    jar = repository.has("a", b"good", before, before)
    assert fetch([jar], tmp_path, mirror=repository.url, first_wait=QUICK)[0].read_bytes() == b"good"
    assert len(repository.asked) == 3


def test_without_a_network_the_jar_and_the_way_out_are_named(repository: Repository, tmp_path: Path) -> None:
    jar = repository.has("a", b"good")
    repository.close()
    with pytest.raises(SetupError, match=r"org\.example:a:1\.0 .*[Rr]efused.*RECONSUME_MAVEN_MIRROR"):
        fetch([jar], tmp_path, mirror=repository.url, first_wait=QUICK)
    assert files(tmp_path) == []


def test_the_mirror_of_the_environment_is_asked(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = repository.has("a", b"good")
    monkeypatch.setenv("RECONSUME_MAVEN_MIRROR", repository.url + "/")
    fetch([jar], tmp_path)
    assert repository.asked == ["/maven/org/example/a/1.0/a-1.0.jar"]
    assert maven_mirror({}) == MAVEN_CENTRAL


def test_progress_ends_at_the_size_of_the_lock_whatever_was_tried_twice(repository: Repository, tmp_path: Path) -> None:
    jars = [repository.has("a", b"a" * 200_000, (200, b"a" * 100_000, 200_000)), repository.has("b", b"b")]
    seen: list[tuple[int, int]] = []
    for size in (200_001, 0):  # the second time all are there: nothing is downloaded, and nothing looks as if it were
        seen.clear()
        fetch(jars, tmp_path, lambda done, total: seen.append((done, total)), mirror=repository.url, first_wait=QUICK)
        assert seen[-1] == (size, size)
        assert {total for _, total in seen} == {size}


FETCH = """
import sys
from pathlib import Path
from reconsume.sidecar.dev.kafka.releases import USUAL, lock_of
from reconsume.sidecar.java.jars import fetch
print([len(path.read_bytes()) for path in fetch(Path(sys.argv[1]), Path(sys.argv[2]), mirror=sys.argv[3])])
"""


def test_processes_that_fetch_a_jar_at_once_all_get_it_whole(repository: Repository, tmp_path: Path) -> None:
    repository.meeting = threading.Barrier(3)  # no process can finish before all three are half done
    jar = repository.has("big", bytes(range(256)) * 1000)
    lock, cache = tmp_path / "some.lock", tmp_path / "cache"
    lock.write_text(f"{jar} {jar.sha256} {jar.size}\n", "utf-8")
    command = [sys.executable, "-c", FETCH, str(lock), str(cache), repository.url]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in started] == ["[256000]\n"] * 3
    assert len(repository.asked) == 3
    assert files(cache) == ["big-1.0.jar"]


def test_each_bad_line_of_a_lock_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "bad.lock"
    lock.write_text(f"# a remark\n\na:b:1 {'0' * 64} 5\na:b 5\na:b:1 {'0' * 63} 5\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        read_lock(lock)
    assert [problem.split(":")[1] for problem in caught.value.problems] == ["4", "5"]


def test_the_lock_of_kafka_has_each_jar_once_and_what_is_easily_missed() -> None:
    jars = read_lock(lock_of(USUAL))
    names = [f"{jar.group}:{jar.artifact}" for jar in jars]
    assert len(set(names)) == len(names) == 46
    assert "org.apache.kafka:kafka_2.13:4.3.1" in {str(jar) for jar in jars}
    bundles = {
        "com.typesafe.scala-logging:scala-logging_2.13",
        "org.xerial.snappy:snappy-java",
        "org.yaml:snakeyaml",
        "org.apache.logging.log4j:log4j-slf4j-impl",
    }
    assert bundles <= set(names)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"RECONSUME_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own/jars"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/reconsume/jars"),
        ({}, "~/.cache/reconsume/jars"),
    ],
)
def test_the_cache_is_the_users_unless_told_otherwise(environ: dict[str, str], folder: str) -> None:
    assert cache_folder(environ) == Path(folder).expanduser()
