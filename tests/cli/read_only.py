"""A process as a hardened container runs it: a read-only root, no home, no capabilities, and a user who is not root.

Linux namespaces do it without a container engine: every mount is made read-only in a mount namespace of its own, then
the user becomes nobody in a user namespace. Files keep their owner, so nobody can read what its maker could.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
HOME = "/nonexistent"
KERNEL = "/proc|/proc/*|/sys|/sys/*|/dev|/dev/pts|/dev/mqueue"
"""File systems that hold no files."""
SCRIPT = f"""
set -e
writable=$1
shift
mount --make-rprivate /
[ -z "$writable" ] || mount --bind "$writable" "$writable"
awk '{{print $5}}' /proc/self/mountinfo | sort -u | while read -r point; do
  case $point in {KERNEL}|"$writable") continue ;; esac
  mount -o remount,bind,ro "$point" 2>/dev/null || [ ! -w "$point" ]
done
exec unshare --user --map-user={NOBODY} --map-group={NOBODY} -- "$@"
"""


def read_only(words: Sequence[str], writable: Path | None = None) -> list[str]:
    """The command that runs `words` so; of all folders only `writable` can be written."""
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    return [*space, "sh", "-c", SCRIPT, "sh", "" if writable is None else str(writable), *words]


def why_not() -> str:
    """Why such a process cannot be made here; empty when it can."""
    try:
        done = subprocess.run(read_only(["true"]), capture_output=True, text=True, timeout=SECONDS, check=False)
    except OSError as fault:
        return str(fault)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def environ(**more: str) -> Mapping[str, str]:
    """What a container's environment has, and nothing of ours but the way to the code."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return {**kept, "HOME": HOME, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1", **more}
