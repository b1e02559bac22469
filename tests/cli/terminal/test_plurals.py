"""Counts in our texts: `1 record`, `2 records`, from one function."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from reconsume import sidecar
from reconsume.sidecar.printable import plural

SOURCE = Path(sidecar.__path__[0])
COUNTED = (
    "attempts|copies|deliveries|dead letters|events|filters|groups|instances|letters|levels|lines|members|"
    "offsets|orders|partitions|posts|records|requests|responses|retries|rows|settlements|tokens|topics"
)
AFTER_A_COUNT = re.compile(rf"^ (?:(?!of )\w+ )?(?:{COUNTED})\b")
IN_A_FORMAT = re.compile(rf"%d (?:\w+ )?(?:{COUNTED})\b")
ELSEWHERE = ("dev/demo/", "java/", "core/")
"""The demo's counts are never one; the core's texts are for developers."""

NO_COUNT = ("%d deliveries", " topics", " partitions")
"""Ten deliveries in a row of `all-refused`; `level topics`, where no number stands before; `partitions or topics`."""


def counted_by_hand(file: Path) -> Iterator[tuple[int, str]]:
    """The line and the noun of each text in which a number stands before a plural noun."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            for value, text in zip(node.values, node.values[1:], strict=False):
                noun = AFTER_A_COUNT.match(str(text.value)) if isinstance(text, ast.Constant) else None
                if isinstance(value, ast.FormattedValue) and noun and not is_large(value):
                    yield node.lineno, noun[0]
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and (found := IN_A_FORMAT.search(node.value))
        ):
            yield node.lineno, found[0]


def is_large(value: ast.FormattedValue) -> bool:
    """Whether the number is one of our constants, which are bounds above one."""
    return isinstance(value.value, ast.Name) and value.value.id.isupper()


def test_every_count_before_a_noun_comes_from_one_function() -> None:
    by_hand = [
        f"{file.relative_to(SOURCE)}:{line}:{noun}"
        for file in sorted(SOURCE.rglob("*.py"))
        if not str(file.relative_to(SOURCE)).startswith(ELSEWHERE)
        for line, noun in counted_by_hand(file)
        if noun not in NO_COUNT
    ]
    assert by_hand == []


def test_the_search_finds_such_texts(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        'a = f"{n} records"\nb = "%d deliveries failed"\nc = f"{plural(n, \'record\')} left"\nd = f"{MOST} records"\n'
    )
    assert [line for line, _ in sorted(counted_by_hand(file))] == [1, 2]


def test_the_plural_of_a_noun() -> None:
    either = ["1 partition or topic", "2 partitions or topics"]
    counts = [
        plural(1, "delivery"),
        plural(2, "delivery"),
        plural(0, "copy"),
        plural(1, "dead letter"),
        plural(1, "partition or topic"),
        plural(2, "partition or topic"),
        plural(2, "key"),
    ]
    assert counts == ["1 delivery", "2 deliveries", "0 copies", "1 dead letter", *either, "2 keys"]
