"""The rows of every section but `deliver` and `kafka`: `retry`, `pull`, `api`, `ui`, `operators`, `view`, and more.

Each setting is one row (`table.py` says what a row has). Only types and limits are here; the rules between two settings
are in `checks.py`. The classes are frozen values: the commands, the runtime and the faces read them on any thread.

A rule of `retry.rules` is a row of rows: what it leaves out is what the group has, and `Settings.retry_rules` completes
it. The base path of the dashboard must not begin like one of its pages (`PAGES`), because a proxy that strips the base
path would then send paths that seem to have it still.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from reconsume.sidecar.settings.addresses import LISTEN_FORMS, Listen, parse_listen
from reconsume.sidecar.settings.table import (
    REQUIRED,
    Section,
    duration,
    either,
    keys_of,
    many,
    mapping_kind,
    number,
    percent,
    setting,
    text,
    whole,
    written,
)
from reconsume.topics.foreign_headers import SYSTEMS
from reconsume.topics.levels import MOST_DELAYS, Exponential, LadderSpec, LevelsSpec
from reconsume.topics.retry_rules import LONGEST_NAME, MOST_PATTERNS, MOST_RULES

DELAY = duration("1s", "10d")
"""The delay of one level, or of one retry in the ladder (contract 2.2)."""
DELAYS = many(DELAY, "delays from 1s to 10d", least=1, most=MOST_DELAYS, same=None)
FORM = "{initial: 5s, multiplier: 2, max: 2h}"


@dataclass(frozen=True, kw_only=True)
class Formula(Section):
    """The formula of an exponential ladder."""

    initial: int = setting("5s", "The first delay.", DELAY)
    multiplier: float = setting(2.0, "By what each delay is multiplied.", number(1, 100))
    max: int = setting("2h", "The longest delay.", DELAY)


FORMULA = mapping_kind(Formula, f"a formula like {FORM}")


def read_formula(value: object) -> Exponential:
    """Return the ladder of a formula. Raises ValueError if it is wrong."""
    return Exponential(**vars(FORMULA.take(value)))


def write_formula(ladder: Exponential) -> dict[str, object]:
    """Return the formula of a ladder, as it is written in YAML."""
    return written(Formula(initial=ladder.initial, multiplier=ladder.multiplier, max=ladder.max))


LADDER = either(
    ("rocketmq", "pulsar"),
    DELAYS,
    replace(FORMULA, read=read_formula, write=write_formula),
    f"rocketmq, pulsar, a list of delays, or a formula like {FORM}",
)
"""What each retry waits."""
LEVELS = either(("ladder", "table"), DELAYS, None, "ladder, table, or a list of delays")
"""The delays that have a level topic."""
TIMES = whole(0, 999_999)
AGE = duration("1s", "3650d")
NAME = text(f"a name: letters of ASCII, digits and . _ -, at most {LONGEST_NAME}", r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}")
TOPICS = text("a main topic, or a glob of topics like orders-*", r"[a-zA-Z0-9._*?\[\]!-]{1,249}")
REASONS = text("a class of reasons, or a glob, like http-409, http-5* or timeout", r"[a-zA-Z0-9._*?\[\]!-]{1,64}")
FOREIGN = text(" or ".join(SYSTEMS), "|".join(SYSTEMS))
LISTEN = text(LISTEN_FORMS, r"\S{1,255}", parse_listen)
HOSTS = many(
    text("the name of a host, without a port", r"[a-zA-Z0-9._-]{1,253}"), "names of hosts", most=64, same=str.lower
)
GROUPS = many(
    text("a group's name or a glob, of letters of ASCII, digits and ._-*?[]!", r"[a-zA-Z0-9._*?\[\]!-]{1,249}"),
    "names of groups, or globs",
    most=256,
)
FILE = text("the path of a file", r".{1,4096}").or_null()
FOLDER = text("the absolute path of a folder", r"/.{0,4095}").or_null()


@dataclass(frozen=True, kw_only=True)
class Rule(Section):
    """One rule of `retry.rules`: null is what the group has."""

    name: str = setting(
        REQUIRED,
        "What the rule is called; it is shown and changed by its name.",
        NAME,
    )
    topics: tuple[str, ...] = setting(
        [],
        "The main topics that it is for, by name or glob; none: all.",
        many(TOPICS, "topics or globs", most=MOST_PATTERNS),
    )
    reasons: tuple[str, ...] = setting(
        [],
        (
            "The classes of failures that it is for, by name or glob; none: all but `lease-expired`. That one must be "
            "named, or matched by a glob other than `*`; it waits only if the rule has a ladder."
        ),
        many(REASONS, "reasons or globs", most=MOST_PATTERNS),
    )
    ladder: LadderSpec | None = setting(
        None,
        "As `retry.ladder`.",
        LADDER.or_null(),
    )
    max_reconsume_times: int | None = setting(
        None,
        "As `retry.max_reconsume_times`.",
        TIMES.or_null(),
    )
    max_age: int | None = setting(
        None,
        "As `retry.max_age`.",
        AGE.or_null(),
    )
    dead_letter: bool = setting(
        False,
        "Such a failure is the last one: the record goes to the DLQ.",
    )


RULE_KEYS = keys_of(Rule)
RULES = many(
    mapping_kind(Rule, RULE_KEYS),
    RULE_KEYS,
    most=MOST_RULES,
    same=operator.attrgetter("name"),
    repeated="a rule is changed by its name: give it another one",
)


@dataclass(frozen=True, kw_only=True)
class Retry(Section):
    """`retry`: how often and when a failed record is tried again."""

    max_reconsume_times: int = setting(
        16,
        "Retries, not deliveries: 3 means at most four deliveries, and 0 sends the first failure to the DLQ.",
        TIMES,
        in_policy=True,
    )
    ladder: LadderSpec = setting(
        "rocketmq",
        (
            "What retry n waits: `rocketmq` (10s to 2h, 4h45m40s in all), `pulsar` (1s to 30m), a list of "
            "delays, or a formula. Past its end every retry waits the last delay."
        ),
        LADDER,
        in_policy=True,
    )
    rules: tuple[Rule, ...] = setting(
        [],
        (
            "What applies to some failures instead: {name, topics, reasons, ladder, max_reconsume_times, max_age, "
            "dead_letter}. `topics` and `reasons` are names or globs (`http-5*`), and none means all; the first rule "
            "that matches decides, and what it leaves out is the group's. `dead_letter: true` ends the record at once. "
            "A delay that the service asks for goes before a ladder."
        ),
        RULES,
        in_policy=True,
    )
    max_age: int | None = setting(
        None,
        (
            "The age, by its own timestamp, after which a record is not due again: a failure whose next retry would "
            "come later puts it into the DLQ as `expired`. Looked at only when a delivery fails. null is without limit."
        ),
        AGE.or_null(),
        in_policy=True,
    )
    jitter: int = setting(
        "0%",
        (
            "By how much the wait of a retry is made longer at most, so that records that failed together do not come "
            "back together. Never shorter. What lies beyond the delay of its level waits at the sidecar."
        ),
        percent("0%", "50%"),
        in_policy=True,
    )
    levels: LevelsSpec = setting(
        None,
        (
            "The level topics: `ladder` (one for each delay of the ladder, none with `deliver.order`), `table` (those "
            "of all 18 levels, 1s to 2h, as well), or a rising list of delays. Other delays are made of hops through "
            "these, at most one second late. A numbered level counts in a list that is given, otherwise among the 18. "
            "A wait below the shortest level is made in memory, or in that level when such waits take a quarter of "
            "`deliver.buffer_memory`. null: 10s, 30s, 1m, 5m, 30m and 2h for the ladder `rocketmq`; for any other, its "
            "delays, or the eight of them with the fewest hops; none with `deliver.order`."
        ),
        LEVELS.or_null(),
        in_policy=True,
    )
    ordered_interval: int = setting(
        "1s",
        "The wait between two tries in place, in ordered mode; the ladder is not used there.",
        duration("10ms", "30s"),
        in_policy=True,
    )
    ordered_max_times: int | None = setting(
        None,
        (
            "Tries in place before an ordered record goes to the DLQ. null is without limit: order then means "
            "that everything waits for the failing record."
        ),
        TIMES.or_null(),
        in_policy=True,
    )
    ordered_ladder: LadderSpec | None = setting(
        None,
        (
            "With `deliver.order`: what retry n of a failing record waits, in the forms of `retry.ladder`. The record "
            "waits in a queue topic, and later ones of its key behind it, for hours if need be; all other keys go on, "
            "and `max_reconsume_times` applies. null: it is tried in place, every `ordered_interval`."
        ),
        LADDER.or_null(),
        in_policy=True,
    )
    ordered_exhausted: Literal["dead-letter", "park"] = setting(
        "dead-letter",
        (
            "What happens to an ordered record whose retries by `ordered_ladder` are used up. `dead-letter`: it goes "
            "to the DLQ, and the next one of its key is delivered. `park`: it stays in its queue without a due time, "
            "and its key waits, until a person decides (`reconsume settle`). Back at `dead-letter`, what is parked "
            "goes to the DLQ."
        ),
        in_policy=True,
    )
    ordered_max_waiting: int = setting(
        20_000,
        (
            "How many records of one partition may wait by `ordered_ladder`, with those behind them. Beyond that, or "
            "16384 offsets of its queue, the partition is paused until some are done."
        ),
        whole(100, 1_000_000),
    )
    nack_redelivery_delay: int = setting(
        "1m",
        "When a record that the service nacked is delivered again; checked every third of it.",
        duration("1s", "10d"),
        in_policy=True,
    )
    postpone_limit: int = setting(
        "1h",
        (
            "For how long a service may postpone a record (`postpone`), from the first time on, before that counts as "
            "a failure with the reason `postponed`. A wait below 10s is counted anew by a new owner."
        ),
        duration("1s", "10d"),
    )
    share: int = setting(
        "50%",
        (
            "The part of the deliveries and of the places in flight that retries and redrives may take while fresh "
            "records wait that could go too. What one side does not use, the other takes. Not in relay mode or "
            "broadcast, where the sidecar delivers only one kind."
        ),
        percent("1%", "99%"),
    )
    max_deaths: int = setting(
        3,
        (
            "At which death of the service a record that was in flight is put into the DLQ as `crashed-service`, if it "
            "was in flight alone at that one. After a death, what was in flight is delivered one at a time; no death "
            "uses up a retry."
        ),
        whole(1, 1000),
        in_policy=True,
    )
    unknown_topic: int = setting(
        "1h",
        (
            "For how long after its due time a retry of a topic that this instance does not consume is passed on to "
            "instances that do, before it goes to the DLQ as `unknown-topic`. Longer than a roll-out takes."
        ),
        duration("1s", "10d"),
    )
    understand: tuple[str, ...] = setting(
        [],
        (
            "Systems whose retry headers count on the main topics, while their retry topics are drained as such: "
            "retries made there are not made again. None by default: whoever writes to a main topic writes them."
        ),
        many(FOREIGN, ", ".join(SYSTEMS), most=len(SYSTEMS)),
    )


@dataclass(frozen=True, kw_only=True)
class Pull(Section):
    """`pull`: limits of pull mode."""

    min_invisible: int = setting(
        "10s",
        (
            "The shortest invisible duration that a receive may ask for; shorter is refused with 400. Short "
            "leases expire while the service still works, and each one costs a retry."
        ),
        duration("10ms", "12h"),
    )
    max_leased: int = setting(
        4096,
        (
            "Records that may be leased or ready to be received at once, over all partitions. `deliver.buffer_memory` "
            "bounds their bytes."
        ),
        whole(1, 65_536),
    )
    nack_max_times: int | None = setting(
        None,
        (
            "How often a record may be nacked; one more nack makes a dead letter, `nacked`. Memory alone counts them, "
            "apart from the retries. null: no limit."
        ),
        whole(0, 1_000_000).or_null(),
    )


@dataclass(frozen=True, kw_only=True)
class Api(Section):
    """`api`: where the sidecar itself listens."""

    listen: Listen = setting(
        "127.0.0.1:8471",
        "The HTTP API for the service beside the sidecar. Outside loopback it needs `api.token_file`.",
        LISTEN,
    )
    token_file: str | None = setting(
        None,
        (
            "A file with the service's bearer tokens, one a line, of at least 16 characters. Every call but the probes "
            "must carry one of them, or an operator's. A line `NAME: TOKEN` names its token for the audit; one that "
            "begins with # is a comment. Read when it is needed, so that a rotated secret takes effect."
        ),
        FILE,
    )
    hosts: tuple[str, ...] = setting(
        [],
        (
            "The names by which the API may be called, such as a Service's, besides `localhost` and the address of "
            "`api.listen`. Any other is refused with 421, so that no page can rebind its name to this address."
        ),
        HOSTS,
    )
    probe_listen: Listen | None = setting(
        "0.0.0.0:8472",
        (
            "Where `/livez`, `/readyz`, `/startupz` and `/metrics` are served to the kubelet and Prometheus, "
            "and nothing else is. null serves them on `api.listen` alone."
        ),
        LISTEN.or_null(),
    )


Read: TypeAlias = Literal["open", "signed-in"]
"""Who may see keys, values, headers and texts of records: every reader, or only those who have signed in."""
PAGES = (
    "activity", "dlq", "find", "groups", "holds", "instances", "keys", "metrics", "part", "policy", "record", "records",
    "sign-in", "sign-out", "static",
)  # fmt: skip
"""The first segments of the dashboard's own paths."""


def expect_no_page(path: str) -> str:
    """Return the path. Raises ValueError if it begins like a page.

    A proxy that strips it would then send paths that seem to have it still.
    """
    if path and (first := path.split("/")[1]) in PAGES:
        raise ValueError(f"begins with /{first}, which is a page of the dashboard: choose another name")
    return path


BASE_PATH = text(
    "a path like /reconsume, of letters, digits and ._~-, without / at its end and without the segments . and ..",
    r"|(?=.{2,200}$)(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+",
    expect_no_page,
)


@dataclass(frozen=True, kw_only=True)
class Ui(Section):
    """`ui`: the dashboard, served by the sidecar itself."""

    enabled: bool = setting(
        False,
        (
            "Serve the dashboard (`reconsume ui`) from this process, on a thread of its own. Whoever "
            "reaches it reads it (on loopback this pod, and who may port-forward to it); `read` says who sees values."
        ),
    )
    listen: Listen = setting(
        "127.0.0.1:8473",
        "Where the dashboard listens, and nothing else does. Outside loopback it needs `operators.token_file`.",
        LISTEN,
    )
    read: Read | None = setting(
        None,
        (
            "Who may see keys, values, headers and texts of records, and why an operator acted, on the dashboard and "
            "through the API: every reader, or only those who have signed in (API: who have a token). The others see "
            "counts, states, topics, ids, classes of reasons and who acted. null: signed-in where "
            "`operators.token_file` is set, or the dashboard is enabled and listens outside loopback; otherwise open."
        ),
    )
    hosts: tuple[str, ...] = setting(
        [],
        "Names by which it may be called besides those of loopback; calls by others are refused.",
        HOSTS,
    )
    base_path: str = setting(
        "",
        (
            "The path below which a proxy serves the dashboard, such as `/reconsume` for "
            "`https://tools.example.org/reconsume/`. Every link has it; requests with and without it are served, so "
            "the proxy may strip it or not. `reconsume ui` uses it, too. Empty: the dashboard is at the root of its "
            "host."
        ),
        BASE_PATH,
    )
    groups: tuple[str, ...] = setting(
        [],
        (
            "The groups that `reconsume ui` and `reconsume groups` show, by name or glob; a group is found by its "
            "policy topic. A file with it needs neither `group` nor `topics`: a command about one group takes "
            "`--group NAME`."
        ),
        GROUPS,
    )


@dataclass(frozen=True, kw_only=True)
class Operators(Section):
    """`operators`: the tokens of those who hold, settle and redrive, and the log of what they do."""

    token_file: str | None = setting(
        None,
        (
            "A file with operators' tokens, one a line, of at least 16 characters. Each opens the dashboard, the "
            "calls of the API that change the group, and reading with values; null: nobody can do that through the "
            "API or the dashboard. A line `NAME: TOKEN` names its token for the audit; one that begins with # is a "
            "comment. Read when it is needed, so that a rotated secret takes effect."
        ),
        FILE,
    )
    audit_file: str | None = setting(
        None,
        (
            "Where each action on the dashboard is written before it begins; needed with `operators.token_file` where "
            "`ui.enabled` is set."
        ),
        FILE,
    )


@dataclass(frozen=True, kw_only=True)
class View(Section):
    """`view`: the group-wide view, made from the events here, or by a Spark job (`reconsume view run`)."""

    enabled: bool = setting(
        False,
        (
            "Follow the group's view and sums into a local SQLite file and serve them; costs disk by the number of "
            "records that have failed lately, some 600 bytes each, and little memory."
        ),
    )
    source: Literal["events", "spark"] = setting(
        "events",
        (
            "What the view is made from. `events`: each reader folds the group's events itself, up to 2 million "
            "records or 2 GB; the group then needs no VIEW topic. `spark`: the rows that the job of "
            "`reconsume view run` writes to these topics, which `topics apply` then creates."
        ),
    )
    folder: str | None = setting(
        None,
        (
            "Where the file is kept, so that a restart goes on where it was. Sidecars may share it: each has a file "
            "of its own, in a folder that only its user can read (`reconsume-<uid>`). A link, a file or another user's "
            "folder of that name is refused. null is a temporary folder: each start then reads the whole view again."
        ),
        FOLDER,
    )


@dataclass(frozen=True, kw_only=True)
class Tracing(Section):
    """`tracing`: each attempt as an OpenTelemetry span."""

    enabled: bool = setting(
        False,
        (
            "Export each attempt as a span, linked to the attempt before, and hand its `traceparent` to the service. "
            "Needs `pip install '.[otel]'` in a clone of the repository; where to, how often and under which name is "
            "said by the variables of OpenTelemetry, "
            "such as `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`."
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Log(Section):
    """`log`: what is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        "The least important line that is still written. `info` writes nothing a record.",
    )
    format: Literal["json", "text"] = setting(
        "json",
        "One JSON object a line for machines, or text for people.",
    )
