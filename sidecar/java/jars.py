"""Download the jars of a lock file from a Maven repository into the user's cache.

A jar is checked by SHA-256 before it gets its final name, and again each time it is used. The result of `fetch`
therefore always matches the lock. Nothing here starts Java or draws a progress bar.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from reconsume.sidecar.errors import ConfigError, SetupError
from reconsume.sidecar.files import open_private
from reconsume.sidecar.tls_context import public_context
from reconsume.topics.masking import url_without_secrets

MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
ATTEMPTS = 4
"""Attempts for one jar. The waits between them are 0.5, 1 and 2 seconds."""
FIRST_WAIT_S = 0.5
STALL = 30
"""Seconds without a byte after which an attempt is given up."""
THREADS = 8
CHUNK = 1 << 16

Progress = Callable[[int, int], None]
"""Called with the bytes that were downloaded and those of all that must be, never by two threads at once. At the end
both are the same; 0 if all jars were in the cache."""


class Jar(msgspec.Struct, frozen=True):
    """One line of a lock file."""

    group: str
    artifact: str
    version: str
    sha256: str
    size: int

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def path(self) -> str:
        """The path of the jar in a Maven repository, and in the cache."""
        folder = f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}"
        return f"{folder}/{self.artifact}-{self.version}.jar"


def read_lock(lock: Path) -> tuple[Jar, ...]:
    """Return the jars of a lock file, in its order. Raises ConfigError that names each malformed line."""
    numbered = enumerate(lock.read_text("utf-8").splitlines(), 1)
    lines = [(number, line) for number, line in numbered if line.strip() and not line.startswith("#")]
    jars = [_jar(line) for _, line in lines]
    if bad := [number for (number, _), jar in zip(lines, jars, strict=True) if jar is None]:
        raise ConfigError([f"{lock}:{n}: expected `group:artifact:version sha256 bytes`" for n in bad])
    return tuple(jar for jar in jars if jar is not None)


def _jar(line: str) -> Jar | None:
    match line.replace(":", " ").split():
        case [group, artifact, version, sha256, size] if len(sha256) == 64 and size.isdecimal():
            return Jar(group, artifact, version, sha256, int(size))
        case _:
            return None


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the jars: RECONSUME_CACHE/jars, else reconsume/jars in the user's cache folder."""
    if own := environ.get("RECONSUME_CACHE"):
        return Path(own).expanduser() / "jars"
    root = environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(root) / "reconsume" / "jars"


def maven_mirror(environ: Mapping[str, str] = os.environ) -> str:
    """Return the Maven repository to download from: RECONSUME_MAVEN_MIRROR, else Maven Central."""
    return (environ.get("RECONSUME_MAVEN_MIRROR") or MAVEN_CENTRAL).rstrip("/")


def fetch(
    lock: Path | Sequence[Jar],
    cache_dir: Path | None = None,
    progress: Progress = lambda _done, _total: None,
    *,
    mirror: str | None = None,
    first_wait: float = FIRST_WAIT_S,
) -> list[Path]:
    """Return the paths of all jars of `lock`, in its order. Download those that are not in the cache.

    Several processes may call it at once. Raises SetupError that names the jar which cannot be downloaded.
    """
    jars = read_lock(lock) if isinstance(lock, Path) else lock
    cache = cache_dir or cache_folder()
    pool = ThreadPoolExecutor(THREADS, "jars")
    try:
        there = pool.map(lambda jar: is_cached(jar, cache), jars)
        missing = [jar for jar, cached in zip(jars, there, strict=True) if not cached]
        count = _Count(sum(jar.size for jar in missing), progress)
        source = _Source(mirror or maven_mirror(), cache, first_wait, count)
        for _ in pool.map(source.get, missing):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    count.add(0)
    return [cache / jar.path for jar in jars]


def is_cached(jar: Jar, cache: Path) -> bool:
    """Return whether the cache has the jar, as the lock has it."""
    target = cache / jar.path
    return target.is_file() and _sha256(target) == jar.sha256


class _Count:
    """The sum of the bytes that all threads have, reported to `progress`."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress = total, progress
        self._done, self._lock = 0, threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self._done += size
            self._progress(self._done, self._total)


class _Source:
    """One mirror, with one cache."""

    def __init__(self, mirror: str, cache: Path, first_wait: float, count: _Count) -> None:
        self._mirror, self._cache, self._first_wait, self._count = mirror, cache, first_wait, count

    def get(self, jar: Jar) -> None:
        """Download a jar, and put it into the cache."""
        target = self._cache / jar.path
        partial = self._new_part(target.parent)
        try:
            self._download(jar, partial)
            partial.chmod(0o644)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _new_part(self, folder: Path) -> Path:
        """Create an empty file for one download. Raises SetupError if the folder cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A name of its own, and a rename at the end: two processes may download the same jar at once.
            handle, name = tempfile.mkstemp(prefix=".part-", dir=folder)
        except OSError as error:
            sentence = f"cannot keep jars in {self._cache}: {error.strerror} (another folder: RECONSUME_CACHE)"
            raise SetupError(sentence) from error
        os.close(handle)
        return Path(name)

    def _download(self, jar: Jar, partial: Path) -> None:
        url = f"{self._mirror}/{jar.path}"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._try(url, jar, partial)
                break
            except (OSError, http.client.HTTPException) as error:
                if attempt == ATTEMPTS or not _passes(error):
                    raise SetupError(_sentence(jar, url, error)) from error
                time.sleep(self._first_wait * 2 ** (attempt - 1))
        digest, shown = _sha256(partial), url_without_secrets(url)
        if digest != jar.sha256:
            raise SetupError(f"{jar} from {shown} is not the jar of the lock: SHA-256 {digest}, expected {jar.sha256}")

    def _try(self, url: str, jar: Jar, partial: Path) -> None:
        got, counted, shown = 0, 0, url_without_secrets(url)
        try:
            with (
                urllib.request.urlopen(url, timeout=STALL, context=public_context()) as reply,
                open_private(partial, "wb") as file,
            ):
                while chunk := reply.read(CHUNK):
                    got += len(chunk)
                    if got > jar.size:
                        raise SetupError(
                            f"{jar} from {shown} is not the jar of the lock: it has more than {jar.size} bytes"
                        )
                    file.write(chunk)
                    self._count.add(len(chunk))
                    counted = got
                if reply.length:  # the only sign from urllib that a body was cut short
                    raise http.client.IncompleteRead(b"", reply.length)
        except BaseException:
            self._count.add(-counted)
            raise


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _passes(error: Exception) -> bool:
    """Whether another attempt may help. It does not after a response such as 403 or 404, nor for a local file."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500 or error.code in (408, 429)
    return isinstance(error, urllib.error.URLError | http.client.HTTPException | TimeoutError | ConnectionError)


def _sentence(jar: Jar, url: str, error: Exception) -> str:
    why = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, urllib.error.HTTPError):
        why = f"HTTP {error.code} {error.reason}"
        error.close()
    return f"cannot fetch {jar} from {url_without_secrets(url)}: {why} (another Maven mirror: RECONSUME_MAVEN_MIRROR)"
