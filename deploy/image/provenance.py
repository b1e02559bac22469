"""Print how a release was made, as an in-toto statement with a SLSA provenance: files made, commit, locks, by digest.

    python deploy/image/provenance.py --revision COMMIT FILE...

The same commit and files give the same bytes: nothing here has a time, a path or a name of the machine. It is a
statement and no proof; whoever publishes a release signs it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("deploy/image/requirements.lock", "deploy/image/tools.lock", "sidecar/java/spark.lock")
COMMIT = re.compile(r"[0-9a-f]{40}")


def described(name: str, file: Path) -> dict[str, object]:
    """Return a file as a resource descriptor."""
    return {"name": name, "digest": {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}}


def statement(revision: str, files: list[Path]) -> dict[str, object]:
    """Return the statement. A revision that is not a whole commit is left out: such a source cannot be found again."""
    source = [{"name": "source", "digest": {"gitCommit": revision}}] if COMMIT.fullmatch(revision) else []
    definition = {
        "buildType": "urn:reconsume:make-sbom:1",
        "externalParameters": {"target": "sbom"},
        "resolvedDependencies": [*source, *(described(lock, ROOT / lock) for lock in LOCKS)],
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [described(file.name, file) for file in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": {"builder": {"id": "urn:reconsume:make"}}},
    }


def main() -> None:
    """Print the statement about the files on the command line."""
    parser = argparse.ArgumentParser(description="Print how a release was made.")
    parser.add_argument("--revision", default="", help="the commit, if nothing in the tree differs from it")
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args()
    print(json.dumps(statement(given.revision, given.files), indent=2))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
