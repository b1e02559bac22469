"""Every worker of a parallel run must collect the same tests: xdist ends the whole run when one id differs."""

from __future__ import annotations

import re
import time

import pytest


def test_no_test_is_named_after_the_moment_at_which_it_was_collected(request: pytest.FixtureRequest) -> None:
    today = re.compile(rf"(?<!\d){str(int(time.time()))[:5]}\d{{5}}")
    assert [item.nodeid for item in request.session.items if today.search(item.nodeid)] == []
