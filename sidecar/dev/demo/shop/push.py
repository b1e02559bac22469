"""Push: each order is one request, and the answer is its verdict."""

from __future__ import annotations

import asyncio

from reconsume.sidecar.dev.demo.ledger import clock, digest_of
from reconsume.sidecar.dev.demo.orders import CASE_HEADER
from reconsume.sidecar.dev.demo.shop.behaviour import Answer, answer_to
from reconsume.sidecar.dev.demo.shop.order_log import Order, OrderLog
from reconsume.sidecar.dev.demo.shop.web import Request, Response, Said, WebFront, render


class PushFront(WebFront):
    """A server that gets one order in each request."""

    def __init__(self, counter: OrderLog) -> None:
        super().__init__(counter, self.answer)

    async def answer(self, request: Request) -> Response:
        at, order = clock(), order_of(request)
        number = self._counter.came(order, at)
        answer = answer_to(order.case, order.times)
        if answer.after:
            await asyncio.sleep(answer.after)
        return Response(render(answer.status, words_of(answer)), [Said(number, answer.verdict, answer.status)])


def order_of(request: Request) -> Order:
    """Return the order in a request: the body is its value, the headers hold the rest."""
    headers, body = request
    digest = digest_of(None if "reconsume-null" in headers else body)
    return Order(headers["reconsume-id"], int(headers["reconsume-times"]), headers.get(CASE_HEADER, ""), digest)


def words_of(answer: Answer) -> str:
    """Return the verdict header, like `retry; delay=3s; reason=out-of-stock`; empty if the status is enough."""
    fields = [f"{name}={text}" for name, text in answer.fields.items()]
    return "; ".join([answer.verdict, *fields]) if fields else ""
