"""`view sql` without Spark: SQLite's SQL over the events, folded into a temporary file."""

from __future__ import annotations

from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.settings import Settings


def ask_events(options: Options, settings: Settings, query: str, most: int | None) -> None:
    """Fold the events into a temporary file, and print what the query finds there."""
    from reconsume.sidecar.cli.retries.whole_view import whole_view  # the Kafka client is slow to import
    from reconsume.sidecar.view.source import Source
    from reconsume.sidecar.view.sql import answers

    with whole_view(settings, Source.EVENTS, most) as look, answers(look.path, query) as (columns, rows):
        options.output.rows(columns, rows)
