"""Each fault that the product knows, many times in one process: then threads, descriptors and memory are as before.

The collector is off. So nothing waits for it, and a reference cycle that holds a batch or a client shows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.integration.freed.kafka_faults import KAFKA_FAULTS, Once
from tests.integration.freed.measure import expect_freed, uncollected, usage
from tests.support.sidecar.scene import Proxied

pytestmark = pytest.mark.usefixtures("cleared")

FEW = 5
"""Times before the first measure: what is made once, and kept, is there then."""


@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", KAFKA_FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_leaves_nothing_behind(
    fault: Callable[[Proxied], AbstractContextManager[Once]], times: int, proxied: Proxied
) -> None:
    with fault(proxied) as once, uncollected():
        for number in range(FEW):
            once(number)
        before = usage()
        for number in range(times):
            once(FEW + number)
        expect_freed(before)
