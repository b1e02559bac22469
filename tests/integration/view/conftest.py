"""A local copy of a view, and somebody who asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconsume.sidecar.view.query import ViewQuery, questions
from reconsume.sidecar.view.store import ViewStore
from reconsume.sidecar.view.store_file import open_store
from tests.support.view_rows import GROUP


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ViewStore]:
    store = open_store(tmp_path, GROUP)
    yield store
    store.close()


@pytest.fixture
def ask(store: ViewStore) -> Iterator[ViewQuery]:
    with questions(store.path) as query:
        yield query
