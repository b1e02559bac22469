"""The names by which a host is called, and origins."""

from __future__ import annotations

import pytest

from reconsume.sidecar.http.access import host_name, origin_of


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("LOCALHOST:1", "localhost"),
        ("[0:0:0:0:0:0:0:1]:8471", "[::1]"),
        ("a_b-c.d", "a_b-c.d"),
        ("a b", None),
        ("a:b:c", None),
        ("::1", None),
        ("a\x00", None),
        ("[::1%lo]", None),
        ("", None),
    ],
)
def test_a_host_is_a_name_or_an_address_with_or_without_a_port(host: str, name: str | None) -> None:
    assert host_name(host) == name


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://a.example", "https://a.example:443", True),
        ("HTTP://A.example:80", "http://a.example", True),
        ("http://[::1]:8471", "http://[0:0::1]:8471", True),
        ("http://a.example", "https://a.example", False),
        ("http://a.example:1", "http://a.example:2", False),
        ("http://[::1]", "http://[::1]:1", False),
    ],
)
def test_two_origins_are_the_same_by_scheme_host_and_port(one: str, other: str, same: bool) -> None:
    assert None not in (origin_of(one), origin_of(other))
    assert (origin_of(one) == origin_of(other)) is same


@pytest.mark.parametrize("text", ["null", "", "http://", "a.example", "http://u@a.example", "http://a.example/x"])
def test_what_is_no_origin_is_nobodys(text: str) -> None:
    assert origin_of(text) is None
