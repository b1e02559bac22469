"""The rows of `deliver`, of the main topics, and of what they have inside: how records reach the service.

Each setting is one row (`table.py` says what a row has). Only types and limits are here; the rules between two settings
are in `checks.py`. The classes are frozen values: the commands, the runtime and the deliveries read them on any thread.

The second part is about `deliver.forward_headers`: which names and globs are refused, and which names none of them
sends. A producer chooses the names of a record's headers. So the operator says which ones are sent (contract 1.4), and
a glob must show what it is about: it has at least three plain characters. `*` alone means CloudEvents. No glob sends a
header that frames the request, describes its body or negotiates the response, nor one that the sidecar writes itself.
Names are compared without case and with `_` as `-`, as CGI, WSGI and gateways read them. `delivery/push` asks
`is_reserved`, `compared` and `as_servers_read` for each record's headers.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Literal

from reconsume.sidecar.core.pace.concurrency import MOST_REQUESTS
from reconsume.sidecar.settings.addresses import URL_FORMS, check_url, is_tls_url
from reconsume.sidecar.settings.idempotency import IDEMPOTENCY, Idempotency
from reconsume.sidecar.settings.table import (
    RATE,
    REQUIRED,
    Section,
    duration,
    keys_of,
    many,
    mapping_kind,
    section,
    setting,
    size,
    text,
    whole,
)
from reconsume.topics import tags
from reconsume.topics.rates import Rate

PLAIN_LEAST = 3
"""Characters of a glob, outside `*`, `?` and brackets, at least."""
EVENTS = "ce-*"
"""What `*` alone means next to the trace, which is always sent: the attributes of CloudEvents."""
AUTHORIZATION = "authorization"
SIGNATURE = frozenset({"webhook-id", "webhook-timestamp", "webhook-signature"})
"""The headers of a signature (Standard Webhooks)."""
RESERVED = re.compile(
    "|".join(
        (
            *("connection", "keep-alive", "te", "trailers?", "transfer-.*", "upgrade.*", "http2-settings", "expect"),
            *("host", "via", "max-forwards", "early-data", "alt-.*", "priority", "proxy-.*"),
            *("content-.*", "range", "if-.*", "accept.*", "prefer", "pragma", "cache-control"),
            *("x-http-method.*", "x-method-override", "http-.*", "reconsume-.*", "idempotency-key"),
        )
    )
)
"""What frames a request, describes its body, negotiates its response or makes another call of it; and our own names."""
WILD = re.compile(r"\*|\?|\[[^\]]*\]")
OTHER = re.compile(r"[^a-z0-9]")


def as_servers_read(name: str) -> str:
    """Return a name with `-` for every other sign, as the most lenient of servers read it."""
    return OTHER.sub("-", name.lower())


def is_reserved(name: str) -> bool:
    """Return whether no record's header of this name is sent, in any spelling that a server may take for it."""
    return RESERVED.fullmatch(as_servers_read(name)) is not None


def compared(name: str) -> str:
    """Return a name or glob as it is compared: in lower case, with `-` for `_`."""
    return name.lower().replace("_", "-")


def check_header_glob(text: str) -> str:
    """Return the text. Raises ValueError if it is a glob of too many names, or names what is never sent."""
    if is_reserved(text):
        raise ValueError("is a header that frames the request, or that Reconsume writes: it is never sent")
    plain = WILD.sub("", text)
    if text not in ("*", plain) and len(plain) < PLAIN_LEAST:
        raise ValueError(
            f"has {len(plain)} plain characters, and a glob needs {PLAIN_LEAST}, so that it shows what it is about; "
            "* alone means CloudEvents and the trace"
        )
    return text


def not_ours(value: str) -> str:
    """Raise ValueError for the media type of the envelope, by which a service recognizes one."""
    if value.partition(";")[0].strip().lower() == ENVELOPE:
        raise ValueError(f"{ENVELOPE} is the type of the envelope; to send envelopes set deliver.envelope")
    return value


ENVELOPE = "application/vnd.reconsume+json"
URL = text(URL_FORMS, r"\S.{0,2047}", check_url).or_null()
# Absolute, so that a secret that is written in place of its file is refused, and masked in the sentence that says so.
FILE = text("the absolute path of a file", r"/.{0,4095}").or_null()
STATUSES = many(whole(300, 599), "HTTP statuses from 300 to 599", most=300)
OUTPUT = text("a topic, or a glob of topics like invoices-*", r"[a-zA-Z0-9._*?\[\]!-]{1,249}")
HEADER_GLOB = text("a header's name or a glob of names, like x-tenant or x-acme-*", r"[!-~]{1,255}", check_header_glob)
AUTO = "auto"
"""`deliver.concurrency`: as many requests as the service works on at once."""
CONCURRENCY = whole(1, 65_536)
TIMEOUT = duration("10ms", "1d")
PATH = text("a path, and its query if it has one, like /orders?by=kafka", r"/[!-\x22$-~]{0,2047}").or_null()
MEDIA_TYPE = r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(?:; ?[!-~]{1,100})?"
CONTENT_TYPE = text("auto, or a media type like application/json", rf"auto|{MEDIA_TYPE}", not_ours)
TAGS = text("* or tags joined by ||, like TagA||TagB", tags.FORM, tags.check_once)
TOPIC = text("a topic's name: letters of ASCII, digits and . _ -, at most 249", r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class Subscription(Section):
    """One main topic, which of its records are wanted, and what it has of its own. Null: as the other topics."""

    name: str = setting(
        REQUIRED,
        "The topic's name.",
        TOPIC,
    )
    tags: str = setting(
        "*",
        (
            "Which records are delivered, by their header TAGS (`tags_header`): `*` for all, or tags joined by `||`. "
            "The others are passed over and never retried."
        ),
        TAGS,
    )
    drains: str | None = setting(
        None,
        (
            "The main topic whose retry topic of another system this is: its records have topic, path, rate and rules "
            "of that one, and this entry has nothing of its own."
        ),
        TOPIC.or_null(),
    )
    path: str | None = setting(
        None,
        "Replaces the path and query of `deliver.url` for its records.",
        PATH,
    )
    timeout: int | None = setting(
        None,
        "As `deliver.timeout`, for its records.",
        TIMEOUT.or_null(),
    )
    concurrency: int | None = setting(
        None,
        "Requests with its records in flight at most, within `deliver.concurrency`.",
        CONCURRENCY.or_null(),
    )
    content_type: str | None = setting(
        None,
        "As `deliver.content_type`, for its records.",
        CONTENT_TYPE.or_null(),
    )
    rate: Rate | None = setting(
        None,
        "Its records a second, minute or hour that an instance delivers at most, within `deliver.rate`.",
        RATE.or_null(),
    )


SUBSCRIPTION = mapping_kind(Subscription, "a topic's name or {name, …}", TOPIC.schema)
SUBSCRIPTIONS = many(
    SUBSCRIPTION,
    f"topics, each a name or {keys_of(Subscription)}",
    least=1,
    same=operator.attrgetter("name"),
    repeated="a topic has one entry, whose tags may be several: TagA||TagB",
)


@dataclass(frozen=True, kw_only=True)
class Batch(Section):
    """`deliver.batch`: many records in one request."""

    max_size: int = setting(
        1,
        (
            "Records in one request at most. 1 sends each record alone, with its value as the body; more sends "
            "the envelope form. 32 is what ONS uses for batches."
        ),
        whole(1, 1024),
    )
    max_bytes: int = setting(
        "1MiB",
        (
            "Bytes of one request's body at most, in which values stand as base64: a third longer than they are. A "
            "single larger record is still sent, alone."
        ),
        size("1KiB", "64MiB"),
    )
    on_failure: Literal["all", "split"] = setting(
        "all",
        (
            "What a failing status of a whole batch means: a failure of each of its records (all), or halves that are "
            "sent at once, in the same attempt, until the record that fails is alone (split). 429, 503 and timeouts "
            "are of all. A 413 or a lost connection is always tried in halves."
        ),
    )
    max_wait: int = setting(
        "0s",
        (
            "How long a batch of a topic waits to be filled; 0s sends what is there at once, so that a quiet topic is "
            "not delayed."
        ),
        duration("0s", "450s"),
    )
    mix: bool = setting(
        False,
        "Whether one request may hold records of several main topics, unless their path or timeout differs.",
    )


@dataclass(frozen=True, kw_only=True)
class Tls(Section):
    """`deliver.tls`: certificates, in files that are read again within 30 s of a change."""

    ca_file: str | None = setting(
        None,
        (
            "A file with the certificates (PEM) that are trusted, and no other is. null trusts the CAs of the system, "
            "which are read at the start. The name of the URL is checked in any case."
        ),
        FILE,
    )
    cert_file: str | None = setting(
        None,
        "A file with the certificate (PEM, with its chain) that is shown to the service (mTLS).",
        FILE,
    )
    key_file: str | None = setting(
        None,
        "A file with the certificate's key (PEM, without a passphrase). null: it is in `cert_file`.",
        FILE,
    )


@dataclass(frozen=True, kw_only=True)
class Deliver(Section):
    """`deliver`: how records reach the service."""

    mode: Literal["push", "pull", "relay", "spark"] = setting(
        "push",
        (
            "Who starts a delivery: the sidecar by an HTTP request (push), the service by calls to the "
            "sidecar's API (pull), the service reads Kafka itself and the sidecar only moves due retries "
            "(relay), or Spark queries alone consume the group, without a sidecar (spark)."
        ),
    )
    url: str | None = setting(
        None,
        (
            "Where records are posted in push mode, required there. A host outside loopback is refused unless "
            "`deliver.allow_remote` is true."
        ),
        URL,
    )
    health_url: str | None = setting(
        None,
        (
            "Polled each second before the first delivery and in an outage; only after a 2xx or 3xx does one record "
            "probe the service. After `outage_failures` in a row it is asked first: such an answer means that this is "
            "no outage. Without it a record probes the service every 0.1 to 5 s."
        ),
        URL,
    )
    health_timeout: int = setting(
        "5s",
        "How long an answer of the health URL may take. A slower one counts as none.",
        duration("100ms", "1m"),
    )
    concurrency: int | Literal["auto"] = setting(
        AUTO,
        (
            "Requests in flight at most, over all partitions. `auto` follows the service, up to 256: the number grows "
            "while responses come as fast as ever, and shrinks when they slow down or time out. A number is fixed: "
            "as many as the service works on at once, its threads say."
        ),
        CONCURRENCY.or_word(AUTO),
        in_policy=True,
        is_agreed=False,
    )
    rate: Rate | None = setting(
        None,
        (
            "Records that this instance delivers at most, like 100/s, 600/m or 5/h: retries as well as fresh ones, "
            "and each record of a batch. What was not used within a second is gone. A record that waits for it is no "
            "attempt. null: no limit."
        ),
        RATE.or_null(),
        in_policy=True,
        is_agreed=False,
    )
    group_rate: Rate | None = setting(
        None,
        (
            "The same for the whole group: each instance has the part of it that its partitions are of all partitions "
            "of the main topics. null: no limit."
        ),
        RATE.or_null(),
        in_policy=True,
    )
    timeout: int = setting(
        "30s",
        (
            "How long one delivery may take, from the request to the end of the response; after it the delivery has "
            "failed. `lock_timeout` and `drain_timeout` follow it. RocketMQ's consume timeout is 15m."
        ),
        TIMEOUT,
        in_policy=True,
        is_agreed=False,
    )
    order: Literal["none", "key", "partition"] = setting(
        "none",
        (
            "What must be delivered one at a time: nothing, records of one key, or a whole partition. A failure "
            "is then retried in place and holds back what follows. While one key fails for long, its partition goes "
            "on until a quarter of `deliver.buffer_memory` waits behind it, then waits; other partitions do not."
        ),
    )
    broadcast: bool = setting(
        False,
        (
            "Every instance gets every record, from the newest on, without a consumer group or topics of its own. "
            "Nothing is retried; only a service that is away or asks for time gets a record later."
        ),
    )
    batch: Batch = section(Batch, "Many records in one request.")
    forward_headers: tuple[str, ...] = setting(
        [],
        (
            "Which of the record's own headers are sent as HTTP headers of the same name; case does not matter, `_` is "
            "`-`. A glob needs three plain characters, like `x-acme-*`; `*` alone means CloudEvents and the trace, "
            "which are always sent. Headers that frame the request (`Content-Length`, `Host`, …) or that Reconsume "
            "writes are never sent. A producer chooses the values: forward no header that your service trusts."
        ),
        many(HEADER_GLOB, "header names or globs", most=256, same=compared),
    )
    content_type: str = setting(
        "auto",
        (
            "The `Content-Type` of a value whose record has no header `content-type` of its own. `auto`: "
            "`application/json` if the value begins and ends with matching braces or brackets, otherwise "
            "`application/octet-stream`. A null value has none; batches and the envelope have their own."
        ),
        CONTENT_TYPE,
    )
    idempotency: Idempotency = setting(
        {"from": "id"},
        (
            "What identifies the effect of a record, for producers that may send it twice: its id (id), the id of "
            "its CloudEvent (ce_id), a header (header, `name`), or a field of its JSON value (json, `pointer`). It is "
            "sent as `Idempotency-Key` and in the envelope; a record without one has the key of its id."
        ),
        IDEMPOTENCY,
    )
    envelope: bool = setting(
        False,
        ("Send JSON that carries key, value and all headers faithfully, instead of the bare value. Batches always do."),
    )
    verdicts: Literal["all", "header"] = setting(
        "all",
        (
            "Where an answer may hold a verdict: in the header `Reconsume-Verdict` or in a JSON body (all), or in the "
            "header alone. With `header` no body is read: for a service whose own answers have a field `verdict`."
        ),
    )
    outputs: tuple[str, ...] = setting(
        [],
        (
            "Topics, by name or glob, to which a service may have records written with its verdict (`produce` in the "
            "JSON body), in the transaction that has the record's progress. Topics of a group (`*-RETRY*`, `*-DLQ`, "
            "`*-ORDERED*`) and of Kafka (`__*`) are refused, and a main topic of this group must be named. None by "
            "default."
        ),
        many(OUTPUT, "topics or globs", most=256),
    )
    max_answer: int = setting(
        "64KiB",
        (
            "Bytes of a JSON answer that are read as a verdict, with its outputs; a batch has 1 KiB more for each "
            "record. What answers have beyond 64 KiB may take a quarter of `deliver.buffer_memory` together, or one "
            "answer of this size; a record whose answer has no room is delivered again, uncounted."
        ),
        size("64KiB", "16MiB"),
    )
    failure_text: Literal["none", "problem", "body", "message"] | None = setting(
        None,
        (
            "Which text of a failure is kept. Of a failed response: none; the reason that a JSON body gives, such as "
            "`detail`, `message` or `error` (problem); or the first 200 characters of any text or JSON body (body). Of "
            "an exception in mode spark: none, or its message (message). The text follows the class in RETRY_REASON, "
            "events, log lines, commands and pages, never in a metric. It can contain personal data. null: problem, "
            "and in mode spark message."
        ),
    )
    dead_letter_statuses: tuple[int, ...] = setting(
        [],
        (
            "Statuses that send a record straight to the DLQ, because a retry could not help (400, 422, say). "
            "They win over throttling by 429 and 503. Empty by default: every failure is retried."
        ),
        STATUSES,
    )
    throttle_statuses: tuple[int, ...] = setting(
        [429],
        (
            "Statuses by which the service asks for time: the record is delivered later, no retry is spent, and "
            "deliveries slow down by the share of answers that ask. 503 with `Retry-After` always does; name 503 for "
            "a server that answers it plainly when it is full."
        ),
        STATUSES,
    )
    outage_failures: int | None = setting(
        20,
        (
            "So many failures in a row, of at least three different records and without one success between them, "
            "are an outage: one delivery at a time probes the service, until one succeeds. Each failure that the "
            "service answers is an attempt, a probe's too. null: never."
        ),
        whole(1, 1_000_000).or_null(),
    )
    outage_interval: int = setting(
        "1s",
        (
            "The pause between two probes of a service that answers with failures: it doubles from 100ms up to this. "
            "Shorter spends attempts faster in an outage; longer makes a lone bad record wait longer for its next one."
        ),
        duration("100ms", "1m"),
    )
    leave_after: int | None = setting(
        "2m",
        (
            "How long the service may be away, or its health URL fail, before this instance leaves the group, if "
            "another one is well. It joins again when the service is well. null: never. See `membership`."
        ),
        duration("1s", "1d").or_null(),
    )
    allow_remote: bool = setting(
        False,
        (
            "Let `url` and `health_url` name another machine. The promise is weaker there: a network between "
            "sidecar and service makes lost answers, and so duplicates, common. It is called directly: a proxy "
            "(HTTP_PROXY) is not supported."
        ),
    )
    tls: Tls = section(Tls, "How an https URL is called: which certificates are trusted, and which one is shown.")
    bearer_token_file: str | None = setting(
        None,
        (
            "A file with one token, sent as `Authorization: Bearer`; to `health_url` only if that has the host and "
            "port of `url`. Read again within 30s of a change."
        ),
        FILE,
    )
    signing_secret_file: str | None = setting(
        None,
        (
            "A file with secrets (`whsec_` and base64 of 24 to 64 bytes), by spaces or lines: each request is signed "
            "with each, as Standard Webhooks says. Read again within 30s of a change."
        ),
        FILE,
    )
    buffer_memory: int = setting(
        "16MiB",
        (
            "Bytes of records that one lane may keep in memory, in delivery or waiting, with their keys, headers and "
            "what Python adds; above it fetching pauses. Copies that Kafka refuses have half as much beside it. It "
            "bounds the sidecar's memory, and a single larger record still passes. The groups of one sidecar share it."
        ),
        size("1MiB", "1GiB"),
    )

    @property
    def fixed_concurrency(self) -> int | None:
        """How many requests may be in flight; None if that follows the service."""
        return None if self.concurrency == "auto" else self.concurrency

    @property
    def most_requests(self) -> int:
        """Requests that can be in flight at most."""
        return MOST_REQUESTS if self.concurrency == "auto" else self.concurrency

    @property
    def shown_mode(self) -> str:
        """The mode as `/status` and `reconsume_info` name it: a broadcast is a mode of its own."""
        return "broadcast" if self.broadcast else self.mode

    @property
    def response_text(self) -> Literal["none", "problem", "body"]:
        """Which text of a failed response is kept."""
        return "problem" if self.failure_text is None or self.failure_text == "message" else self.failure_text

    @property
    def by_tls(self) -> bool:
        """Whether a request to one of the URLs goes through TLS."""
        return any(url is not None and is_tls_url(url) for url in (self.url, self.health_url))
