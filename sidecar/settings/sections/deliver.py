"""The section `deliver`, and the main topics.

Only types and limits are here. The rules between two settings are in `checks.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from reconsume.sidecar.settings.addresses import URL_FORMS, check_url, is_tls_url
from reconsume.sidecar.settings.header_globs import check_header_glob
from reconsume.sidecar.settings.sections.tls import FILE, Tls
from reconsume.sidecar.settings.values import Section, duration, many, rate, size, text, whole
from reconsume.topics.durations import parse_duration as ms
from reconsume.topics.rates import Rate


def not_ours(value: str) -> str:
    """Raise ValueError for the media type of the envelope, by which a service recognizes one."""
    if value.partition(";")[0].strip().lower() == ENVELOPE:
        raise ValueError(f"{ENVELOPE} is the type of the envelope; to send envelopes set deliver.envelope")
    return value


ENVELOPE = "application/vnd.reconsume+json"
URL = text(URL_FORMS, r"\S.{0,2047}", check_url).or_null()
STATUS = whole(300, 599)
OUTPUT = text("a topic, or a glob of topics like invoices-*", r"[a-zA-Z0-9._*?\[\]!-]{1,249}")
HEADER_GLOB = text("a header's name or a glob of names, like x-tenant or x-acme-*", r"[!-~]{1,255}", check_header_glob)
RATE = rate().or_null()
CONCURRENCY = whole(1, 65_536)
TIMEOUT = duration("10ms", "1d")
PATH = text("a path, and its query if it has one, like /orders?by=kafka", r"/[!-\"$-~]{0,2047}").or_null()
MEDIA_TYPE = r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(?:; ?[!-~]{1,100})?"
CONTENT_TYPE = text("auto, or a media type like application/json", rf"auto|{MEDIA_TYPE}", not_ours)
TAGS = text("* or tags joined by ||, like TagA||TagB", r"\*|[^\s|*]+(?:\s*\|\|\s*[^\s|*]+)*")
TOPIC = text("a topic's name: letters of ASCII, digits and . _ -, at most 249", r"[a-zA-Z0-9._-]{1,249}")


class Subscription(Section):
    """One main topic, which of its records are wanted, and what it has of its own. Null: as the other topics."""

    name: Annotated[str, TOPIC] = Field(
        description="The topic's name.",
    )
    tags: Annotated[str, TAGS] = Field(
        default="*",
        description=(
            "Which records are delivered, by their header TAGS: `*` for all, or tags joined by `||`. The others "
            "are passed over and never retried."
        ),
    )

    path: Annotated[str | None, PATH] = Field(
        default=None,
        description="Replaces the path and query of `deliver.url` for its records.",
    )
    timeout: Annotated[int | None, TIMEOUT.or_null()] = Field(
        default=None,
        description="As `deliver.timeout`, for its records.",
    )
    concurrency: Annotated[int | None, CONCURRENCY.or_null()] = Field(
        default=None,
        description="Requests with its records in flight at most, within `deliver.concurrency`.",
    )
    content_type: Annotated[str | None, CONTENT_TYPE.or_null()] = Field(
        default=None,
        description="As `deliver.content_type`, for its records.",
    )
    rate: Annotated[Rate | None, RATE] = Field(
        default=None,
        description="Its records a second, minute or hour that an instance delivers at most, within `deliver.rate`.",
    )

    @model_validator(mode="before")
    @classmethod
    def from_name(cls, value: Any) -> Any:
        """Accept a topic that is given by its name alone."""
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [dict(TOPIC.plain), handler(schema)]}


class Batch(Section):
    """`deliver.batch`: many records in one request."""

    max_size: Annotated[int, whole(1, 1024)] = Field(
        default=1,
        description=(
            "Records in one request at most. 1 sends each record alone, with its value as the body; more sends "
            "the envelope form. 32 is what ONS uses for batches."
        ),
    )
    max_bytes: Annotated[int, size("1KiB", "64MiB")] = Field(
        default=1 << 20,
        description=(
            "Bytes of one request's body at most, in which values stand as base64: a third longer than they are. A "
            "single larger record is still sent, alone."
        ),
    )
    on_failure: Literal["all", "split"] = Field(
        default="all",
        description=(
            "What a failing status of a whole batch means: a failure of each of its records (all), or halves that are "
            "sent at once, in the same attempt, until the record that fails is alone (split). 429, 503 and timeouts "
            "are of all. A 413 is always tried in halves."
        ),
    )
    max_wait: Annotated[int, duration("0s", "450s")] = Field(
        default=0,
        description=(
            "How long a batch waits to be filled; 0s sends what is there at once, so that a quiet topic is not delayed."
        ),
    )


class Deliver(Section):
    """`deliver`: how records reach the service."""

    mode: Literal["push", "pull", "relay"] = Field(
        default="push",
        description=(
            "Who starts a delivery: the sidecar by an HTTP request (push), the service by calls to the "
            "sidecar's API (pull), or the service reads Kafka itself and the sidecar only moves due retries "
            "(relay)."
        ),
    )
    url: Annotated[str | None, URL] = Field(
        default=None,
        description=(
            "Where records are posted in push mode, required there. A host outside loopback is refused unless "
            "`deliver.allow_remote` is true."
        ),
    )
    health_url: Annotated[str | None, URL] = Field(
        default=None,
        description=(
            "Polled each second before the first delivery and in an outage; only after a 2xx or 3xx does one record "
            "probe the service. After `outage_failures` in a row it is asked first: such an answer means that this is "
            "no outage. Without it a record probes the service every 0.1 to 5 s."
        ),
    )
    health_timeout: Annotated[int, duration("100ms", "1m")] = Field(
        default=ms("5s"),
        description="How long an answer of the health URL may take. A slower one counts as none.",
    )
    concurrency: Annotated[int, CONCURRENCY] = Field(
        default=256,
        description=(
            "Requests in flight at most, over all partitions. More helps a slow service until it is overloaded; "
            "each one costs a connection."
        ),
    )
    rate: Annotated[Rate | None, RATE] = Field(
        default=None,
        description=(
            "Records that this instance delivers at most, like 100/s, 600/m or 5/h: retries as well as fresh ones, "
            "and each record of a batch. What was not used within a second is gone. A record that waits for it is no "
            "attempt. null: no limit."
        ),
    )
    group_rate: Annotated[Rate | None, RATE] = Field(
        default=None,
        description=(
            "The same for the whole group: each instance has the part of it that its partitions are of all partitions "
            "of the main topics. null: no limit."
        ),
    )
    timeout: Annotated[int, TIMEOUT] = Field(
        default=ms("30s"),
        description=(
            "How long one delivery may take, from the request to the end of the response; after it the delivery has "
            "failed. `lock_timeout` and `drain_timeout` follow it. RocketMQ's consume timeout is 15m."
        ),
    )
    order: Literal["none", "key", "partition"] = Field(
        default="none",
        description=(
            "What must be delivered one at a time: nothing, records of one key, or a whole partition. A failure "
            "is then retried in place and holds back what follows. While one key fails for long, its partition goes "
            "on until a quarter of `deliver.buffer_memory` waits behind it, then waits; other partitions do not."
        ),
    )
    broadcast: bool = Field(
        default=False,
        description=(
            "Every instance gets every record, from the newest on, without a consumer group or topics of its own. "
            "Nothing is retried; only a service that is away or asks for time gets a record later."
        ),
    )
    batch: Batch = Field(
        default=Batch(),
        description="Many records in one request.",
    )
    forward_headers: Annotated[tuple[str, ...], many(HEADER_GLOB, "header names or globs", most=256)] = Field(
        default=(),
        description=(
            "Which of the record's own headers are sent as HTTP headers of the same name; case does not matter, `_` is "
            "`-`. A glob needs three plain characters, like `x-acme-*`; `*` alone means CloudEvents and the trace, "
            "which are always sent. Headers that frame the request (`Content-Length`, `Host`, …) or that Reconsume "
            "writes are never sent. A producer chooses the values: forward no header that your service trusts."
        ),
    )
    content_type: Annotated[str, CONTENT_TYPE] = Field(
        default="auto",
        description=(
            "The `Content-Type` of a value whose record has no header `content-type` of its own. `auto`: "
            "`application/json` if the value begins and ends with matching braces or brackets, otherwise "
            "`application/octet-stream`. A null value has none; batches and the envelope have their own."
        ),
    )
    envelope: bool = Field(
        default=False,
        description=(
            "Send JSON that carries key, value and all headers faithfully, instead of the bare value. Batches "
            "always do."
        ),
    )
    verdicts: Literal["all", "header"] = Field(
        default="all",
        description=(
            "Where an answer may hold a verdict: in the header `Reconsume-Verdict` or in a JSON body (all), or in the "
            "header alone. With `header` no body is read: for a service whose own answers have a field `verdict`."
        ),
    )
    outputs: Annotated[tuple[str, ...], many(OUTPUT, "topics or globs", most=256)] = Field(
        default=(),
        description=(
            "Topics, by name or glob, to which a service may have records written with its verdict (`produce` in the "
            "JSON body), in the transaction that has the record's progress. Topics of a group (`*-RETRY*`, `*-DLQ`, "
            "`*-ORDERED*`) and of Kafka (`__*`) are refused, and a main topic of this group must be named. None by "
            "default."
        ),
    )
    max_answer: Annotated[int, size("64KiB", "16MiB")] = Field(
        default=64 * 1024,
        description=(
            "Bytes of a JSON answer that are read as a verdict, with its outputs; a batch has 1 KiB more for each "
            "record. What answers have beyond 64 KiB may take a quarter of `deliver.buffer_memory` together, or one "
            "answer of this size; a record whose answer has no room is delivered again, uncounted."
        ),
    )
    failure_text: Literal["none", "problem", "body"] = Field(
        default="problem",
        description=(
            "Which text of a failed response is kept: none; the reason that a JSON body gives, such as `detail`, "
            "`message` or `error` (problem); or the first 200 characters of any text or JSON body (body). The text "
            "follows the class in RETRY_REASON, events, log lines, commands and pages, never in a metric. It can "
            "contain personal data."
        ),
    )
    dead_letter_statuses: Annotated[tuple[int, ...], many(STATUS, "HTTP statuses from 300 to 599", most=300)] = Field(
        default=(),
        description=(
            "Statuses that send a record straight to the DLQ, because a retry could not help (400, 422, say). "
            "They win over throttling by 429 and 503. Empty by default: every failure is retried."
        ),
    )
    throttle_statuses: Annotated[tuple[int, ...], many(STATUS, "HTTP statuses from 300 to 599", most=300)] = Field(
        default=(429,),
        description=(
            "Statuses by which the service asks for time: the record is delivered later, no retry is spent, and "
            "deliveries slow down by the share of answers that ask. 503 with `Retry-After` always does; name 503 for "
            "a server that answers it plainly when it is full."
        ),
    )
    outage_failures: Annotated[int | None, whole(1, 1_000_000).or_null()] = Field(
        default=20,
        description=(
            "So many failures in a row, of at least three different records and without one success between them, "
            "are an outage: one delivery at a time probes the service, until one succeeds. Each failure that the "
            "service answers is an attempt, a probe's too. null: never."
        ),
    )
    outage_interval: Annotated[int, duration("100ms", "1m")] = Field(
        default=ms("1s"),
        description=(
            "The pause between two probes of a service that answers with failures: it doubles from 100ms up to this. "
            "Shorter spends attempts faster in an outage; longer makes a lone bad record wait longer for its next one."
        ),
    )
    leave_after: Annotated[int | None, duration("1s", "1d").or_null()] = Field(
        default=ms("2m"),
        description=(
            "How long the service may be away, or its health URL fail, before this instance leaves the group, if "
            "another one is well. It joins again when the service is well. null: never. See `membership`."
        ),
    )
    allow_remote: bool = Field(
        default=False,
        description=(
            "Let `url` and `health_url` name another machine. The promise is weaker there: a network between "
            "sidecar and service makes lost answers, and so duplicates, common. It is called directly: a proxy "
            "(HTTP_PROXY) is not supported."
        ),
    )
    tls: Tls = Field(
        default=Tls(),
        description="How an https URL is called: which certificates are trusted, and which one is shown.",
    )
    bearer_token_file: Annotated[str | None, FILE] = Field(
        default=None,
        description=(
            "A file with one token, sent as `Authorization: Bearer`; to `health_url` only if that has the host and "
            "port of `url`. Read again within 30s of a change."
        ),
    )
    signing_secret_file: Annotated[str | None, FILE] = Field(
        default=None,
        description=(
            "A file with secrets (`whsec_` and base64 of 24 to 64 bytes), by spaces or lines: each request is signed "
            "with each, as Standard Webhooks says. Read again within 30s of a change."
        ),
    )
    buffer_memory: Annotated[int, size("1MiB", "1GiB")] = Field(
        default=16 << 20,
        description=(
            "Bytes of records that one lane may keep in memory, in delivery or waiting, with their keys, headers and "
            "what Python adds; above it fetching pauses. Copies that Kafka refuses have half as much beside it. It "
            "bounds the sidecar's memory, and a single larger record still passes."
        ),
    )

    @property
    def by_tls(self) -> bool:
        """Whether a request to one of the URLs goes through TLS."""
        return any(url is not None and is_tls_url(url) for url in (self.url, self.health_url))
