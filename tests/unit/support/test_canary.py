"""The search for the shared secret finds it wherever it may stand; a search that finds nothing would prove nothing."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.support.canary import CANARY, betraying, betrays


@pytest.mark.parametrize("before", range(5))
def test_the_secret_is_found_as_it_is_and_in_base64(before: int) -> None:
    whole = b"user=" + b"x" * before + CANARY.encode() + b";and more"
    assert betrays(whole)
    assert betrays(base64.b64encode(whole).decode())


def test_other_texts_are_not_taken_for_it() -> None:
    assert not betrays("a canary sings; sasl.password=********")
    assert not betrays(base64.b64encode(b"a canary sings, and a canary sings"))


def test_what_a_process_wrote_is_searched_and_what_the_test_itself_wrote_is_not(tmp_path: Path) -> None:
    for name in ("pod-0.log", "pod-0.yaml", "user/password", "ledger.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"x {CANARY} y")
    (tmp_path / "clean.log").write_text("nothing")
    assert set(betraying(tmp_path.rglob("*"))) == {tmp_path / "pod-0.log", tmp_path / "ledger.jsonl"}
    for name in ("pod-0.log", "ledger.jsonl"):
        (tmp_path / name).unlink()  # or the search of the whole suite would find them
