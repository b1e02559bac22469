"""Batch: many orders in one request, in the envelope form; the answer is a list of verdicts."""

from __future__ import annotations

import asyncio

import msgspec

from reconsume.sidecar.dev.demo.shop.behaviour import answer_to
from reconsume.sidecar.dev.demo.shop.order_log import Enveloped, OrderLog
from reconsume.sidecar.dev.demo.shop.web import Request, Response, Said, WebFront, render

PATIENCE_SECONDS = 1.2
"""Seconds; an order that takes longer is left out of the answer and retried: it must not delay all the others."""


class Letter(msgspec.Struct, frozen=True):
    """The body of a request."""

    records: list[Enveloped]


class BatchFront(WebFront):
    """A server that gets many orders in one request."""

    def __init__(self, counter: OrderLog) -> None:
        super().__init__(counter, self.answer)
        self._decode = msgspec.json.Decoder(Letter).decode

    async def answer(self, request: Request) -> Response:
        """Work on all orders of a request at the same time."""
        orders = [record.order for record in self._decode(request.body).records]
        numbers = [self._counter.came(order) for order in orders]
        answers = [answer_to(order.case, order.times) for order in orders]
        await asyncio.sleep(min(PATIENCE_SECONDS, max(answer.after for answer in answers)))
        done = [each for each in zip(orders, numbers, answers, strict=True) if each[2].after <= PATIENCE_SECONDS]
        verdicts = [{"id": order.id, "verdict": answer.verdict, **answer.fields} for order, _, answer in done]
        body = msgspec.json.encode({"verdicts": verdicts})
        said = [Said(number, answer.verdict) for _, number, answer in done]
        return Response(render(200, body=body, content_type="application/json"), said)
