"""A short round of `make fuzz`, the same each time, and all that it once found."""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.fuzz.corpus_files import inputs_of
from tests.fuzz.mutate import mutated
from tests.fuzz.targets import TARGETS

ROUNDS = 300
SECONDS = 2.0
"""Of the processor, for one input of 100 KB at most."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_a_parser(name: str) -> None:
    """Given good bytes that were cut, repeated and spliced, then each is taken or refused, in short time."""
    target, random = TARGETS[name], Random(name)
    for data in (*inputs_of(name), *target.seeds, *(mutated(target.seeds, random) for _ in range(ROUNDS))):
        begun = time.process_time()
        target.feed(data)
        assert time.process_time() - begun < SECONDS, data[:200]
