"""A FastAPI service behind Reconsume.

pip install fastapi uvicorn
uvicorn orders:app --port 8080
"""

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

CATALOGUE = {"A-17"}

app = FastAPI()


class Order(BaseModel):
    sku: str


@app.post("/events", status_code=204)
def handle(order: Order) -> None:
    if order.sku not in CATALOGUE:
        raise HTTPException(422, f"{order.sku} is not in the catalogue")
