"""Counts transaction requests that come late at proxies: after a newer connection of the client has brought some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

from tests.support.kafka.proxy import KafkaProxy
from tests.support.kafka.proxy_frames import end_txn
from tests.support.kafka.proxy_rules import Api, Moment, Request, Rule

ENDLESS = 1_000_000_000
COUNTED = (Api.END_TXN, Api.TXN_OFFSET_COMMIT)


class LateFrames:
    """Counts from its start on. The proxy must not be cleared meanwhile."""

    def __init__(self, proxies: Iterable[KafkaProxy], client: str = "") -> None:
        self.late: Counter[Api] = Counter()
        self.fenced = 0
        """Late EndTxn of a former epoch: the broker refuses them, and they end nothing."""
        self._newest: dict[tuple[int, str, Api], int] = {}
        self._epochs: dict[str, int] = {}
        for number, proxy in enumerate(proxies):
            for api in COUNTED:
                proxy.add(Rule(api, client, Moment.ARRIVED, partial(self._note, number), times=ENDLESS))

    def _note(self, proxy: int, request: Request) -> None:
        api = Api(request.api)
        key = (proxy, request.client, api)
        newest = self._newest.get(key, 0)
        self._newest[key] = max(newest, request.connection)
        late = request.connection < newest
        self.late[api] += late
        if api is Api.END_TXN:
            epoch = end_txn(request).epoch
            self.fenced += late and epoch < self._epochs.get(request.client, epoch)
            self._epochs[request.client] = max(epoch, self._epochs.get(request.client, epoch))

    def __str__(self) -> str:
        ends, offsets = (self.late[api] for api in COUNTED)
        return f"{ends} EndTxn late ({self.fenced} of them of a former epoch), {offsets} TxnOffsetCommit late"
