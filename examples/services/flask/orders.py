"""A Flask service behind Reconsume.

pip install flask
flask --app orders run --port 8080
"""

from typing import Any

from flask import Flask, abort, request
from werkzeug.exceptions import HTTPException

CATALOGUE = {"A-17"}

app = Flask(__name__)


@app.errorhandler(HTTPException)
def as_json(error: HTTPException) -> Any:
    return {"error": error.description}, error.code


@app.post("/events")
def handle() -> Any:
    order = request.get_json()
    if not isinstance(order, dict) or "sku" not in order:
        abort(400, "it has no sku")
    if order["sku"] not in CATALOGUE:
        abort(422, f"{order['sku']} is not in the catalogue")
    return "", 204
