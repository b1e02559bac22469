"""Handles: nobody can make one up, and one of another process is told from what never was one."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.delivery.pull.handles import FORM, ReceiptHandles
from reconsume.sidecar.delivery.pull.lease_table import HandleStatus

HANDLES = ReceiptHandles()
REAL = HANDLES.encode(3, 4711)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_handle_leads_back_to_its_lease(epoch: int, number: int) -> None:
    assert HANDLES.decode(HANDLES.encode(epoch, number)) == number


def test_handles_of_two_assignments_differ() -> None:
    assert HANDLES.encode(1, 7) != HANDLES.encode(2, 7)


def test_a_handle_of_another_incarnation_is_fenced() -> None:
    assert ReceiptHandles().decode(REAL) is HandleStatus.FENCED


@pytest.mark.parametrize(
    "garbage",
    ["", "x", "h1-", REAL[:-1], f"{REAL}A", REAL.replace("h1-", "g1-"), f"h1-{'!' * 43}", f"h1-{'é' * 43}", "é" * 46],
    ids=["empty", "short", "mark", "cut", "longer", "other mark", "no letters", "no ASCII", "nothing of it"],
)
def test_garbage_is_unknown(garbage: str) -> None:
    assert HANDLES.decode(garbage) is HandleStatus.UNKNOWN


@given(st.integers(8, 31), st.integers(1, 255))
def test_a_handle_of_ours_with_any_byte_changed_is_unknown(place: int, change: int) -> None:
    """Epoch, number and code alike: a caller that has one handle cannot make another one of it."""
    sealed = bytearray(base64.urlsafe_b64decode(REAL[len(FORM) :] + "="))
    sealed[place] ^= change
    forged = FORM + base64.urlsafe_b64encode(sealed)[:-1].decode()
    assert HANDLES.decode(forged) is HandleStatus.UNKNOWN


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    assert HANDLES.decode(text) is HandleStatus.UNKNOWN
