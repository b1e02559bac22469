"""A sidecar that restarts in place on demand: SIGUSR1 is a cause that breaks something, SIGHUP one that does not.

Run as `python -m tests.flow.faults.restarting_sidecar run -c FILE`, as the sidecar itself is. `TESTS_MOST_RESTARTS` is
how often it may.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import MutableMapping
from functools import partial

from reconsume.sidecar.__main__ import main
from reconsume.sidecar.kafka.listeners import RestartCause, RestartReason
from reconsume.sidecar.runtime import restarts, run


class RestartsOnDemand(restarts.Restarts):
    """Restarts that signals ask for, each time for another incarnation of a topic."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        super().__init__(environ)
        restarts.UNCHANGED = restarts.LONGEST_TURN = 0.0
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, partial(self._ask_for, RestartReason.CLIENT_DEAF, broken=True))
        loop.add_signal_handler(signal.SIGHUP, partial(self._ask_for, RestartReason.QUEUE_TOPIC, broken=False))

    def _ask_for(self, reason: RestartReason, *, broken: bool) -> None:
        self.ask(RestartCause(reason, "any", uuid.uuid4().hex, broken))


if __name__ == "__main__":
    restarts.MOST = int(os.environ.get("TESTS_MOST_RESTARTS", restarts.MOST))
    run.Restarts = RestartsOnDemand  # type: ignore[misc]
    main()
