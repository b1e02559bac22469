"""The services of `examples/services`, with the client that the sidecar uses: what `docs/service.md` says of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reconsume.sidecar.core.outcome import COMMITTED, Failed, Outcome
from tests.support.service.frameworks import EXAMPLES, FETCHED, FRAMEWORKS, example
from tests.support.sidecar.push_client import a_push, a_record, deliver, run, settled

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text(encoding="utf-8")
KNOWN, UNKNOWN = b'{"sku": "A-17"}', b'{"sku": "A-99"}'
NO_ORDERS = (b"{}", b"[1]", b'{"sku"', b"no json")
"""Values of records that hold no order."""
NOT_KEPT = "the text/html body is not kept (deliver.failure_text)"

frameworks = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in FETCHED else ()) for name in FRAMEWORKS]
)


def outcomes(url: str, *values: bytes | None, **settings: object) -> list[Outcome]:
    """What the service's responses to these values mean, one after the other."""
    found: list[Outcome] = []

    async def work() -> None:
        push = a_push(url, **{"failure_text": "problem", **settings})
        for number, value in enumerate(values):
            found.append(await deliver(push, a_record(number, value)))
        push.close()
        await settled(lambda: push.connections == 0)

    run(work)
    return found


def failure(url: str, value: bytes | None = UNKNOWN, **settings: object) -> tuple[str, str]:
    """The class and text of a failure."""
    [outcome] = outcomes(url, value, **settings)
    assert isinstance(outcome, Failed), outcome
    return outcome.reason, outcome.text


def test_the_page_links_each_example_and_has_the_first_one_as_it_is() -> None:
    linked = set(re.findall(r"\(\.\./examples/services/(\w+)", PAGE))
    of_modes = {"java"}  # docs/modes.md has these
    assert linked == set(FRAMEWORKS) == {folder.name for folder in EXAMPLES.iterdir()} - of_modes
    code = (EXAMPLES / "fastapi" / "orders.py").read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert f"```python\n{code}```" in PAGE


@frameworks
def test_json_reaches_the_handler_and_a_refusal_says_why(name: str, tmp_path: Path) -> None:
    """Given an example, when it gets orders and what is none, then it handles the first and gives a reason for all."""
    with example(name, tmp_path) as url:
        known, unknown, *refused, last = outcomes(url, KNOWN, UNKNOWN, *NO_ORDERS, KNOWN)
    assert (known, last) == (COMMITTED, COMMITTED)
    assert isinstance(unknown, Failed)
    assert unknown.reason == "http-422"
    assert unknown.text.endswith("A-99 is not in the catalogue")
    for value, outcome in zip(NO_ORDERS, refused, strict=True):
        assert isinstance(outcome, Failed), (value, outcome)
        assert outcome.reason in ("http-400", "http-415", "http-422"), (value, outcome)
        assert outcome.text, (value, outcome)


def test_fastapi_says_where_a_model_does_not_fit(tmp_path: Path) -> None:
    with example("fastapi", tmp_path) as url:
        assert failure(url, b"{}") == ("http-422", "body.sku: Field required")
        assert failure(url, b'{"sku": 7}') == ("http-422", "body.sku: Input should be a valid string")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in FETCHED else ()) for name in ("fastapi", "spring")]
)
def test_without_a_content_type_of_json_a_typed_body_is_refused(name: str, tmp_path: Path) -> None:
    """Given bytes that are sent as such, then FastAPI answers 422, and Spring 415."""
    with example(name, tmp_path) as url:
        reason, _ = failure(url, KNOWN, content_type="application/octet-stream")
    assert reason == {"fastapi": "http-422", "spring": "http-415"}[name]


def test_flask_s_abort_gives_no_reason_without_a_handler_for_errors(tmp_path: Path) -> None:
    handler = "@app.errorhandler(HTTPException)\n"
    with example("flask", tmp_path, (handler, "")) as url:
        assert failure(url) == ("http-422", NOT_KEPT)
        assert failure(url, failure_text="body")[1].startswith("<!doctype html>")


def test_django_refuses_a_post_to_a_view_that_wants_a_token_and_another_host(tmp_path: Path) -> None:
    """Given a view without `csrf_exempt`, then it answers 403; given another name in the URL, then 400."""
    with example("django", tmp_path, ("@csrf_exempt\n", "")) as url:
        assert failure(url, KNOWN)[0] == "http-403"
    with example("django", tmp_path / "other", ('"127.0.0.1", "localhost"', '"shop.example"')) as url:
        assert failure(url, KNOWN)[0] == "http-400"


@pytest.mark.long
def test_express_answers_in_html_without_a_handler_and_takes_100_kb(tmp_path: Path) -> None:
    """Given no handler for errors, then there is no reason; given a value above 100 KiB, then it is 413."""
    start = "app.use((error, request, response, next) => {"
    with example("express", tmp_path, (start, "(() => {")) as url:
        assert failure(url, b'{"sku"' + b"}") == ("http-400", NOT_KEPT)
    with example("express", tmp_path / "again") as url:
        large = b'{"sku": "A-17", "note": "' + b"x" * 102_400 + b'"}'
        assert failure(url, large) == ("http-413", "request entity too large")


@pytest.mark.long
def test_spring_gives_no_reason_of_its_own_without_problem_details(tmp_path: Path) -> None:
    with example("spring", tmp_path, ("spring.mvc.problemdetails.enabled=true", "")) as url:
        assert failure(url) == ("http-422", "Unprocessable Content")
