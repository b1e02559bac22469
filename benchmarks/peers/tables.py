"""The tables that are printed: copy them into benchmarks/README.md with machine and date."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from benchmarks.peers.runs import Everyday, Killed, Speed, quantile

console = Console(width=150)
T = TypeVar("T")


def show_speeds(title: str, runs: Mapping[str, Sequence[Speed]], yardstick: str) -> None:
    """Medians of the rounds at full speed; the ratios are medians of the ratios within a round."""
    table = started(title, "records/s", "ratio", "CPU µs", "ratio", "memory MB")
    bare = runs.get(yardstick, ())
    for name, speeds in runs.items():
        table.add_row(
            name,
            f"{median(one.rate for one in speeds):,.0f}",
            ratio(speeds, bare, lambda one: one.rate),
            number(median(one.cpu_us for one in speeds)),
            ratio(speeds, bare, lambda one: one.cpu_us),
            f"{max(one.peak for one in speeds) / 1e6:.0f}",
        )
    console.print(table)


def show_everyday(runs: Mapping[str, Sequence[Everyday]], yardstick: str) -> None:
    """Medians of the rounds at an everyday load."""
    table = started("100 records/s, all good", "CPU %", "ratio", "p50 ms", "p99 ms", "memory MB")
    bare = runs.get(yardstick, ())
    for name, loads in runs.items():
        table.add_row(
            name,
            f"{median(one.cpu for one in loads):.1f}",
            ratio(loads, bare, lambda one: one.cpu),
            f"{median(one.p50 for one in loads):.1f}",
            f"{median(one.p99 for one in loads):.1f}",
            f"{max(one.peak for one in loads) / 1e6:.0f}",
        )
    console.print(table)


def show_killed(runs: Mapping[str, Sequence[Killed]]) -> None:
    """Sums of the rounds with a kill; back is the longest."""
    columns = ("lost", "repeated", "early", "late p50 ms", "late max ms", "back s", "wait p50 ms", "wait p99 ms")
    table = started("100 records/s, every 50th fails once, killed in the middle", *columns)
    for name, rounds in runs.items():
        accounts = [one.account for one in rounds]
        late = sorted(ms for one in accounts for ms in one.late)
        waits = sorted(ms for one in accounts for ms in one.waits)
        table.add_row(
            name,
            str(sum(one.lost for one in accounts)),
            str(sum(one.repeated for one in accounts)),
            str(sum(one.early for one in accounts)),
            number(median(late)),
            number(late[-1] if late else None),
            f"{max(one.back for one in rounds):.1f}",
            number(median(waits)),
            number(quantile(waits, 0.99) if waits else None),
        )
    console.print(table)


def started(title: str, *columns: str) -> Table:
    """An empty table with a column for the peer."""
    table = Table("peer", title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def median(values: Iterable[float | None]) -> float | None:
    """The median of what is there, None without anything."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def ratio(runs: Sequence[T], bare: Sequence[T], of: Callable[[T], float | None]) -> str:
    """The median ratio to the yardstick of the same round, as text."""
    pairs = [(of(one), of(other)) for one, other in zip(runs, bare, strict=False)]
    found = median(value / other if value is not None and other else None for value, other in pairs)
    return "" if found is None else f"{found:.2f}"


def number(value: float | None) -> str:
    """A number without decimals, nothing for None."""
    return "" if value is None else f"{value:,.0f}"
