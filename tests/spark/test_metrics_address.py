"""The address of the job's metrics: one that is taken is named with its option, without a traceback."""

from __future__ import annotations

import re
import socket
import time

import pytest

from reconsume.spark.errors import TakenError
from reconsume.spark.job.liveness import Liveness
from reconsume.spark.job.meters import Meters
from reconsume.spark.job.run import serve


def test_an_address_that_is_taken_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = f"cannot listen on 127.0.0.1:{port} (--metrics-listen): Address already in use"
        with pytest.raises(TakenError, match=f"^{re.escape(told)}$"):
            serve(Meters(("view",), Liveness(("view",), time.monotonic)), "127.0.0.1", port)
