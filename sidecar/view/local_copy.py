"""One local copy of the view: its file, what it is made from, and the clients that keep it while they live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from reconsume.sidecar.view.forms import form_of
from reconsume.sidecar.view.reader import ViewReader
from reconsume.sidecar.view.source import Source
from reconsume.sidecar.view.store import ViewStore
from reconsume.sidecar.view.store_file import open_store
from reconsume.topics.names import Kind, Names


class LocalCopy:
    """A file, and a reader while it is connected. All calls must come from one thread."""

    def __init__(self, folder: Path | None, names: Names, source: Source) -> None:
        """Open the file. Raises OSError, sqlite3.Error."""
        self.source = source
        self.store: ViewStore = open_store(folder, names.group, source)
        self.reader: ViewReader | None = None
        self._names = names
        self._bad: Counter[Kind] = Counter()

    def connect(self, kafka: Mapping[str, str], client: str, check_every: float) -> ViewReader:
        """Create the clients. Raises KafkaException."""
        form = form_of(self.source, kafka, self._names, client)
        self.reader = ViewReader(kafka, self._names, self.store, form, client, check_every)
        return self.reader

    def disconnect(self) -> None:
        """Close the clients. The file can be queried all the same."""
        if self.reader is not None:
            self._bad.update(self.reader.bad)
            self.reader.close()
            self.reader = None

    @property
    def bad(self) -> dict[Kind, int]:
        """The number of records that were skipped since the file was opened, by kind."""
        counts = self._bad + Counter() if self.reader is None else self._bad + Counter(self.reader.bad)
        return dict(counts)

    def close(self) -> None:
        """Close the file."""
        self.disconnect()
        self.store.close()
