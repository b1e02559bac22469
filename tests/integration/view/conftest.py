"""A local copy of a view, and somebody who asks it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconsume.sidecar.view.copy import ViewCopy, open_copy
from reconsume.sidecar.view.query import ViewQuery, questions
from reconsume.sidecar.view.source import Source
from tests.support.view_rows import GROUP


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ViewCopy]:
    store = open_copy(tmp_path, GROUP, Source.SPARK)
    yield store
    store.close()


@pytest.fixture
def ask(store: ViewCopy) -> Iterator[ViewQuery]:
    with questions(store.path) as query:
        yield query
