"""`dev deliver`: one delivery to the service by the sidecar's own code, without Kafka, and what its response means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

from reconsume.sidecar.cli.dev.typed_records import encoded, header_of, value_in
from reconsume.sidecar.cli.terminal.arguments import optional_record_id
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka, settings_of_one
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import Format, Row
from reconsume.sidecar.clock import wall
from reconsume.sidecar.core.decide import Decision, LeaveUncommitted, NackWait, Postpone, RetryInPlace, decide
from reconsume.sidecar.core.outcome import Committed, NotSent, Outcome, label_of
from reconsume.sidecar.core.policy import Policy
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.hints import not_ours
from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings import Settings
from reconsume.sidecar.settings.policy import build_policy
from reconsume.topics.durations import render_duration
from reconsume.topics.reasons import reason_class
from reconsume.topics.retry_headers import Headers
from reconsume.topics.transitions import Commit, DeadLetter, Forward, Hop, Requeue, Retry, Wait

if TYPE_CHECKING:
    from reconsume.sidecar.core.record import Record
    from reconsume.sidecar.delivery.push.trial import Trial

FIELDS = ("field", "value")
SHOWN = 2_000
"""Characters of a body that are shown."""
HIDDEN_HEADERS = frozenset({"authorization", "webhook-signature"})
"""Headers of a request whose values are not printed: the output of a test ends in many logs."""


def deliver(
    options: Options,
    value_file: Annotated[
        str | None, typer.Option("--value-file", metavar="FILE", help="The value of the record; - reads it from stdin.")
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            metavar="ID",
            help="Deliver this record of a main topic instead, read from Kafka, such as orders:0:17.",
            callback=optional_record_id,
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="The main topic of the record; the first one by default.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="The key; none by default.")] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
) -> int:
    """Deliver one record to your service, once.

    The record is sent as the sidecar sends it: same URL, headers, content type, envelope or batch, credentials and
    timeout. The command prints what was sent, what the response means, and what would follow. Kafka is not needed,
    except to read the record of --record, and nothing is written to it: use this command in the unit tests of your
    handler.

    Ends with 0 if the record would be done, and with 1 if the response means anything else.

    \b
    Examples:
      reconsume dev deliver --value-file order.json
      reconsume dev deliver --value-file order.json --topic orders --key customer-7 --header trace=1
      reconsume dev deliver --record orders:0:17
    """
    if (value_file is None) == (record is None):
        raise typer.BadParameter("give either --value-file or --record: which record is delivered?")
    if record is not None and (topic is not None or key is not None or headers):
        raise typer.BadParameter("--record has its own topic, key and headers: leave out --topic, --key and --header")
    pairs: Headers = [header_of(text) for text in headers or ()]
    settings = settings_of_one(options) if record is None else settings_for_kafka(options)
    if settings.deliver.mode != "push":
        raise ConfigError([f"deliver.mode is {settings.deliver.mode}: only in push mode the sidecar calls the service"])
    from reconsume.sidecar.delivery.push.trial import deliver_once, made_up_record  # slow to import

    if record is None:
        main = settings.topic_names[0] if topic is None else topic
        if main not in settings.topic_names:
            raise typer.BadParameter(not_ours(main, settings.topic_names))
        own_key = None if key is None else encoded(key, "--key")
        delivered = made_up_record(settings.drains.get(main, main), own_key, value_in(value_file or ""), pairs)
    else:
        from reconsume.sidecar.kafka.listed_records import read_main_record

        delivered = read_main_record(settings.kafka, settings.group, settings.topic_names, record, settings.drains)
    trial = deliver_once(settings, delivered)
    follows = what_follows(delivered, trial.outcome, settings)
    print_trial(options, trial, follows)
    return DONE if isinstance(trial.outcome, Committed) else FAILED


def what_follows(record: Record, outcome: Outcome, settings: Settings) -> str:
    """Return in one sentence what the sidecar would do with the record after this outcome."""
    if isinstance(outcome, NotSent):
        return "no request was sent: the record waits until the service can be reached, and no retry is used up"
    policy = build_policy(settings, "")
    at = wall()
    return described(decide(record, outcome, policy, at), policy, at)


def described(decision: Decision, policy: Policy, now_ms: int) -> str:
    """Return a decision about a record that was delivered for the first time, in one sentence."""
    match decision:
        case Commit():
            return "the record is done"
        case Retry(retry_state=state, level=level):
            topic = policy.retry_topic(level, state)
            most = policy.terms_of(state.topic, reason_class(state.reason)).max_reconsume_times
            return f"retry {state.times} of {most} after {render_duration(state.due_at - now_ms)}, in {topic}"
        case DeadLetter(retry_state=state, reason=reason):
            return f"a dead letter in {policy.dlq_of(state.topic)}, as {reason}"
        case Requeue(retry_state=state):
            return f"the record is parked in {policy.names.ordered(state.topic)} until an operator decides"
        case Hop(retry_state=state, level=level):
            wait = render_duration(state.due_at - now_ms)
            return f"delivered again after {wait}, in {policy.retry_topic(level, state)}; no retry is used up"
        case Postpone(ms=ms) | Wait(ms=ms):
            return f"delivered again after {render_duration(ms)}; no retry is used up"
        case RetryInPlace(ms=ms):
            return f"retried in place after {render_duration(ms)}"
        case NackWait() | LeaveUncommitted() | Forward():
            return "delivered again"
    assert_never(decision)


def print_trial(options: Options, trial: Trial, follows: str) -> None:
    """Print the delivery: a field in each row for people, one object for programs."""
    row = row_of(trial, follows)
    if options.output.format is not Format.TABLE:
        options.output.rows(tuple(row), [row])
        return
    options.output.rows(FIELDS, [{"field": name, "value": text} for name, text in fields_of(row)])


def row_of(trial: Trial, follows: str) -> Row:
    """Return a delivery as a row: what was sent, and what the response means."""
    head, _, body = trial.request.partition(b"\r\n\r\n")
    line, *lines = head.decode("ascii").split("\r\n")
    pairs = [text.split(": ", 1) for text in lines]
    outcome = trial.outcome
    return {
        "request": " ".join(line.split(" ")[:2]),
        "headers": {name: "(hidden)" if name.lower() in HIDDEN_HEADERS else value for name, value in pairs},
        "body": body.decode(errors="backslashreplace"),
        "outcome": label_of(outcome),
        "reason": getattr(outcome, "reason", ""),
        "text": getattr(outcome, "text", ""),
        "odd": list(trial.odd),
        "follows": follows,
    }


def fields_of(row: Row) -> Iterator[tuple[str, str]]:
    """Yield the fields of a delivery for people; those that are empty are left out."""
    for name, value in row.items():
        match value:
            case dict():
                yield from (("header", f"{header}: {text}") for header, text in value.items())
            case list():
                yield from ((name, text) for text in value)
            case "":
                continue
            case _:
                text = printable(str(value))
                yield name, text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
