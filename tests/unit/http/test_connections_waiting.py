"""Callers that only wait take no place from others."""

from __future__ import annotations

from reconsume.sidecar.http.connections import Admission, Connections, Limits


def test_any_number_of_waiting_callers_leaves_every_place_to_the_answers_of_others() -> None:
    closed: list[str] = []
    everyone: Connections[str] = Connections(
        Limits(connections=4, reserve=1, waiting_path="/v1/receive"), closed.append
    )
    for number in range(500):
        assert everyone.enter(f"waits-{number}", "") is Admission.FULL
        everyone.called(f"waits-{number}", waits=True)
    for number in range(4):
        assert everyone.enter(f"acks-{number}", "") is Admission.FULL
        everyone.called(f"acks-{number}")
    assert everyone.enter("one-more", "") is Admission.RESERVE, "the others have a call under way"
    assert closed == []
    everyone.answered("acks-0")
    assert everyone.enter("next", "") is Admission.FULL
    assert closed == ["acks-0"], "it was between two calls, and no waiting caller was closed for it"
    everyone.called("next")
    everyone.answered("waits-7")
    everyone.called("waits-7")
    everyone.forget_connection("waits-8")
    assert everyone.enter("another", "") is Admission.RESERVE, "a caller that has its record takes a place again"
