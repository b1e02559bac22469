"""`python -m tests.packet_loss`: committers and a sidecar lose packets. Exit code 1: records are lost or doubled."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.packet_loss.committers import MANY, committers_under_loss
from tests.packet_loss.sidecars import sidecar_under_loss

RELEASES = ("3.9", "4.3")


def main(words: Sequence[str] | None = None) -> int:
    """Run both experiments on each release; the exit code."""
    asked = _parser().parse_args(words)
    seed = asked.seed if asked.seed is not None else random.randrange(1_000_000)
    logging.getLogger("reconsume").setLevel(logging.CRITICAL)  # of lost connections there is no end
    console, sound = Console(), True
    console.print(f"seed {seed}", highlight=False)
    for release in asked.release or RELEASES:
        if rounds := -(-asked.ends // MANY):
            ends = committers_under_loss(release, rounds, seed)
            sound = sound and ends.sound
            console.print(f"Kafka {release}: {ends}", highlight=False, markup=False, soft_wrap=True)
        if asked.incidents:
            folder = Path(tempfile.mkdtemp(prefix=f"packet-loss-{release}-"))
            incidents = sidecar_under_loss(release, asked.incidents, seed, folder)
            sound = sound and incidents.sound
            console.print(f"Kafka {release}: {incidents}", highlight=False, markup=False, soft_wrap=True)
            console.print(f"the sidecar's log is in {folder}", highlight=False, soft_wrap=True)
    return 0 if sound else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make packet-loss", description="Transactions whose ends are lost on the way."
    )
    parser.add_argument("--release", action="append", help=f"of Kafka, again for another ({' and '.join(RELEASES)})")
    parser.add_argument("--ends", type=int, default=240, help="of committers' transactions that are lost (240)")
    parser.add_argument("--incidents", type=int, default=20, help="losses under a sidecar (20)")
    parser.add_argument("--seed", type=int, help="repeats how long each loss is")
    return parser


if __name__ == "__main__":
    sys.exit(main())
