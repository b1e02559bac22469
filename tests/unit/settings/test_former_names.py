"""A setting that was renamed: its former name is taken for one release, from every source, and named in a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.settings.fields import json_schema
from reconsume.sidecar.settings.former_names import FORMER_NAMES
from reconsume.sidecar.settings.load import load_with_origins
from tests.support.sidecar.cli import reconsume
from tests.support.sidecar.settings import GOOD, problems, write_good

MIB = 1 << 20


def taken(tmp_path: Path, deliver: str, *sets: str, **environ: str) -> tuple[int, list[str]]:
    """The buffer's bytes, and the warnings, by a section `deliver` with a line more."""
    file = tmp_path / "reconsume.yaml"
    file.write_text(GOOD.replace("deliver:\n", f"deliver:\n{deliver}"), encoding="utf-8")
    loaded = load_with_origins(file, sets, environ)
    return loaded.settings.deliver.buffer_memory, list(loaded.warnings)


@pytest.mark.parametrize(
    ("deliver", "sets", "environ", "size"),
    [
        ("  max_held: 4MiB\n", (), {}, 4),
        ("", (), {"RECONSUME_DELIVER__MAX_HELD": "8MiB"}, 8),
        ("", ("deliver.max_held=2MiB",), {}, 2),
        ("  buffer_memory: 4MiB\n", ("deliver.max_held=2MiB",), {}, 2),
        ("  buffer_memory: 4MiB\n", (), {"RECONSUME_DELIVER__MAX_HELD": "8MiB"}, 8),
        ("  max_held: 4MiB\n", ("deliver.buffer_memory=2MiB",), {}, 2),
    ],
)
def test_a_former_name_counts_in_each_source_as_the_present_one_does(
    tmp_path: Path, deliver: str, sets: tuple[str, ...], environ: dict[str, str], size: int
) -> None:
    found, warnings = taken(tmp_path, deliver, *sets, **environ)
    assert found == size * MIB
    [warning] = warnings
    assert warning.startswith("deliver.max_held is called deliver.buffer_memory now")


def test_the_present_name_gives_no_warning(tmp_path: Path) -> None:
    assert taken(tmp_path, "  buffer_memory: 4MiB\n") == (4 * MIB, [])


def test_a_wrong_value_is_named_with_where_it_came_from(tmp_path: Path) -> None:
    (problem,) = problems(write_good(tmp_path), ["deliver.max_held=16"])
    assert problem.startswith('deliver.buffer_memory = "16": must be a size')
    assert problem.endswith("(--set)")


@pytest.mark.parametrize("of_the_file", [True, False], ids=["file", "environment"])
def test_both_names_in_one_source_are_a_fault(tmp_path: Path, *, of_the_file: bool) -> None:
    file = write_good(tmp_path)
    both = {"RECONSUME_DELIVER__MAX_HELD": "8MiB", "RECONSUME_DELIVER__BUFFER_MEMORY": "8MiB"}
    if of_the_file:
        text = GOOD.replace("deliver:\n", "deliver:\n  max_held: 4MiB\n  buffer_memory: 4MiB\n")
        file.write_text(text, encoding="utf-8")
    (problem,) = problems(file, environ={} if of_the_file else both)
    assert problem.startswith("deliver.max_held: is the former name of deliver.buffer_memory, which is set too (")


def test_check_says_so_and_is_content(tmp_path: Path) -> None:
    shown = reconsume("config", "check", "-c", write_good(tmp_path), "--set", "deliver.max_held=4MiB")
    assert shown.exit_code == 0, shown.stderr
    assert "warning: deliver.max_held is called deliver.buffer_memory now" in shown.stderr


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_an_editor_is_told_that_the_name_goes(former: tuple[str, ...]) -> None:
    section, name = former
    schema = json_schema()
    model = schema["properties"][section]["$ref"].rpartition("/")[2]
    assert schema["$defs"][model]["properties"][name]["deprecated"] is True
