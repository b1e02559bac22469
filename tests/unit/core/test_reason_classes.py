"""A service that gives each record a reason of its own fills neither the metrics nor the sums."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reconsume.sidecar.core.outcome import Failed, Rejected
from reconsume.sidecar.core.reason_classes import DAY, MOST, OTHER, ReasonClasses

NOON = 20_000 * DAY + DAY // 2


def test_of_a_days_classes_the_first_are_kept_and_the_rest_is_other_with_its_word_in_the_text() -> None:
    classes = ReasonClasses()
    said = [classes.bounded(Rejected(f"order-{number}", "late"), NOON) for number in range(MOST + 2)]
    assert [one.reason for one in said[:MOST]] == [f"order-{number}" for number in range(MOST)]
    assert said[MOST:] == [Rejected(OTHER, f"order-{number}: late") for number in (MOST, MOST + 1)]
    assert classes.bounded(Failed("order-3"), NOON) == Failed("order-3"), "a kept one stays"
    assert classes.bounded(Failed("order-999", delay=5, asked=True), NOON) == Failed(
        OTHER, "order-999", delay=5, asked=True
    )
    assert classes.bounded(Failed("order-999"), NOON + DAY) == Failed("order-999"), "another day begins anew"


def test_words_and_statuses_have_64_names_each_and_a_status_beyond_them_is_counted_as_its_class() -> None:
    classes = ReasonClasses()
    for number in range(MOST):
        assert classes.bounded(Rejected(f"word-{number}"), NOON).reason == f"word-{number}"
        assert classes.bounded(Failed(f"http-{400 + number}"), NOON).reason == f"http-{400 + number}"
    assert classes.bounded(Failed("http-503", "busy"), NOON) == Failed("http-5xx", "http-503: busy")
    assert classes.bounded(Failed("http-503x"), NOON) == Failed(OTHER, "http-503x"), "a word of the service"


@given(st.lists(st.text("abc", min_size=1, max_size=6) | st.integers(0, 999).map("http-{:03}".format), max_size=600))
def test_however_many_words_and_statuses_a_service_has_few_are_counted(words: list[str]) -> None:
    """Given any, then 64 words and 64 statuses have their name, and neither takes the place of the other."""
    classes = ReasonClasses()
    said = [classes.bounded(Failed(word), NOON).reason for word in words]
    given_words = [
        dict.fromkeys(word for word in words if word.startswith("http-") is status) for status in (False, True)
    ]
    for known, beyond in zip(given_words, (lambda _: OTHER, lambda word: f"{word[:6]}xx"), strict=True):
        kept = list(known)[:MOST]
        expected = [word if word in kept else beyond(word) for word in words if word in known]
        assert [one for one, word in zip(said, words, strict=True) if word in known] == expected
