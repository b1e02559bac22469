"""The classes of a Kafka release as Java has read and checked them: written once on a machine, then mapped by nodes.

Without it they are 40 % of the CPU of a start. Java itself compares an archive with its own version and with the jars,
and goes on without one that does not fit (JEP 310, JEP 350).
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from reconsume.sidecar.dev.kafka.first_metadata import keep
from reconsume.sidecar.java.jars import cache_folder

# A line for each class that cannot be archived would hide why a node has ended.
QUIET = "-Xlog:cds=off,cds+dynamic=off,class+path=off"
CHECK_S = 30.0
"""Seconds in which Java must have looked at an archive."""


class ClassArchive(msgspec.Struct, frozen=True):
    """Where the archive of a release is kept, and where a node of this cluster may write one."""

    java: Path
    jars: tuple[Path, ...]
    kept: Path
    written: Path
    """A file of the cluster's own folder."""

    @classmethod
    def of(cls, lock: Path, java: Path, jars: Sequence[Path], folder: Path) -> ClassArchive:
        """The archive of the release that `lock` fixes by this `java`, for a cluster in `folder`."""
        what = hashlib.sha256(lock.read_bytes() + bytes(java.resolve()))
        kept = cache_folder().with_name("kafka") / f"{what.hexdigest()[:32]}.jsa"
        return cls(java=java, jars=tuple(jars), kept=kept, written=folder / "classes.jsa")

    @property
    def fits(self) -> bool:
        """Whether there is one, and neither Java nor a jar was replaced since."""
        try:
            return self.kept.stat().st_ctime > max(path.stat().st_ctime for path in (self.java, *self.jars))
        except OSError:
            return False

    def options(self, *, write: bool) -> tuple[str, ...]:
        """Return the options of Java for a node; with `write` it writes an archive at its end if none fits."""
        if self.fits:
            return (f"-XX:SharedArchiveFile={self.kept}", QUIET)
        return (f"-XX:ArchiveClassesAtExit={self.written}", QUIET) if write else ()

    def take(self, *, ran: bool) -> None:
        """Move what a node has written at its end, if it has, to where later starts look for it.

        One that never `ran` has not read most classes: what it has written is thrown away.
        """
        if self.written.exists():
            if ran and self._is_whole():
                with suppress(OSError):  # without a cache that can be written, no start has an archive
                    keep(self.written, self.kept)
            self.written.unlink()

    def _is_whole(self) -> bool:
        """Whether Java can use it: one that ends early, as on a full disk, would crash each Java that maps it."""
        words = [
            str(self.java),
            "-Xshare:on",
            "-XX:+VerifySharedSpaces",
            f"-XX:SharedArchiveFile={self.written}",
            QUIET,
        ]
        words += ["-cp", ":".join(map(str, self.jars)), "-version"]
        try:
            ended = subprocess.run(words, capture_output=True, cwd=self.written.parent, timeout=CHECK_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return ended.returncode == 0
