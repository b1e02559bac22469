"""Which of a test's cases `make test` takes, which `make test-all` alone, and which may be skipped on CI."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

SKIPPED = (
    "RECONSUME_KUBE_APISERVER",  # a kube-apiserver is built for 4 to 5 minutes: tests/deploy/build_api_server.sh
    "RECONSUME_IMAGE",  # make image-test
    "no IPv6 loopback",  # these three say something of the machine
    "no mount and user namespaces",
    "is for linux-amd64",
    "no program for this service",  # node, go or nginx: what runs beside a sidecar, and nothing that it needs
    "no program to read the schema",  # npm: what editors use
    "no C compiler for a clock",
    "the old libraries are not in Maven's",  # what the page says of them is compared with the list beside it anyway
    "no release of",  # a table's format that has none yet for this Spark
    "UPDATE_SCREENSHOTS",  # no test: makes the pictures of the documentation
)
"""What the reasons of skips say that are none for want of a program of ours."""


EXAMPLES = int(os.environ.get("TESTS_EXAMPLES", "40"))
"""Cases that a test of a property makes up; `make test-all` has it make up more."""


def may_skip(reason: str) -> bool:
    """Whether a test may be skipped on CI too."""
    return any(words in reason for words in SKIPPED)


def inner(kept: object, cases: Iterable[Any]) -> list[ParameterSet]:
    """The cases of a parameter: `kept` in every run, the others where there is time for all."""
    marked = [pytest.param(case, marks=() if case == kept else pytest.mark.long) for case in cases]
    assert any(not case.marks for case in marked), f"{kept!r} is none of the cases"
    return marked
