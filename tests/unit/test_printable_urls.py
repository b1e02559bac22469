"""Secrets in URLs: whoever shows one shows neither user nor password, query nor fragment, however it is written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconsume.topics.masking import MASK, text_without_secrets, url_without_secrets

SECRET = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12).map("S3".__add__)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8080/events", "http://127.0.0.1:8080/events"),
        ("http://127.0.0.1:8080/events?token=s3cret", f"http://127.0.0.1:8080/events?{MASK}"),
        ("http://127.0.0.1/e?s3cret", f"http://127.0.0.1/e?{MASK}"),
        ("http://127.0.0.1/e?a=1&token=s3 cret", f"http://127.0.0.1/e?{MASK}"),
        ("http://127.0.0.1/e#s3cret", f"http://127.0.0.1/e#{MASK}"),
        ("http://127.0.0.1/e#s3cret?s3cret", f"http://127.0.0.1/e#{MASK}"),
        ("http://127.0.0.1/e?", "http://127.0.0.1/e?"),
        ("http://user:s3cret@host/e", f"http://{MASK}@host/e"),
        ("http://user:s3?cr#et/@host/e?s3cret", f"http://{MASK}@host/e?{MASK}"),
        ("user:s3cret@host/e?s3cret", f"{MASK}@host/e?{MASK}"),
        ("hxxp:/host?s3cret", f"hxxp:/host?{MASK}"),
        ("127.0.0.1:8080/e?s3cret", f"127.0.0.1:8080/e?{MASK}"),
        ("unix:/run/a@b.sock:/e?s3cret", f"unix:/run/a@b.sock:/e?{MASK}"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert url_without_secrets(url) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach 'http://h/e?s3cret': refused", f"cannot reach 'http://h/e?{MASK}': refused"),
        ("HTTPConnectionPool(host='h'): with url: /v1/traces?key=s3cret (Caused by x)",
         f"HTTPConnectionPool(host='h'): with url: /v1/traces?{MASK} (Caused by x)"),
        ('token from "https://u:s3cret@idp/t?x=s3cret": denied', f'token from "https://{MASK}@idp/t?{MASK}": denied'),
        ("is it x-? or a/b?", "is it x-? or a/b?"),
        ("ssl://b-1:9093/1: Disconnected (after 3ms)", "ssl://b-1:9093/1: Disconnected (after 3ms)"),
        ("mail to a@b.example, in /run/a@b", "mail to a@b.example, in /run/a@b"),
    ],
)  # fmt: skip
def test_a_text_is_shown_without_the_secrets_of_its_urls(text: str, shown: str) -> None:
    assert text_without_secrets(text) == shown


@given(
    SECRET,
    st.sampled_from(["http://{}@h/e", "http://u:{}@h/e", "http://h/e?{}", "http://h/e?a=b&t={}", "http://h/#{}"]),
)
def test_whatever_the_secret_nothing_of_it_is_shown(secret: str, form: str) -> None:
    assert secret not in url_without_secrets(form.format(secret))
    assert secret not in text_without_secrets(f"cannot reach {form.format(secret)} now").replace("now", "")


def test_a_long_text_of_slashes_takes_no_time() -> None:
    """Given a megabyte that looks like URLs everywhere, then it is one pass."""
    assert len(text_without_secrets("//" * 500_000)) == 1_000_000
