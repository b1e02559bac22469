"""A served API, with and without a token, and that of pull mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconsume.sidecar.api.app import Access
from tests.support.service.pull_api import PullApi, pull_api
from tests.support.sidecar.api_calls import the_app
from tests.support.sidecar.running_api import Operation, serving


@pytest.fixture
def sidecar() -> Operation:
    return Operation()


@pytest.fixture
def port(sidecar: Operation) -> Iterator[str | int]:
    with serving(the_app(sidecar)) as place:
        yield place


@pytest.fixture
def guarded(sidecar: Operation, token_file: Path) -> Iterator[str | int]:
    """A server whose changing calls need a token."""
    with serving(the_app(sidecar, Access(token_file, ("localhost", "billing.local")))) as place:
        yield place


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("the-first-secret\n")
    return path


@pytest.fixture
def api() -> Iterator[PullApi]:
    with pull_api() as api:
        yield api
