"""The smaller sections of the configuration, one frozen class each, a paragraph a field: meaning, default, why.

Only shapes and limits live here; what two settings must agree on is in `checks.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sidecar.settings.addresses import LISTEN_FORMS, parse_listen
from sidecar.settings.retries import DELAYS, LADDER
from sidecar.settings.section import Section
from sidecar.settings.values import duration, fraction, many, text, whole
from topics.durations import parse_duration as ms
from topics.foreign import SYSTEMS
from topics.levels import TABLE, LadderSpec

LISTEN = text(LISTEN_FORMS, r"\S{1,255}", parse_listen)
TIMES = whole(0, 999_999)
FOLDER = text("the absolute path of a folder", r"/.{0,4095}")
FOREIGN = text(" or ".join(SYSTEMS), "|".join(SYSTEMS))


class Retry(Section):
    """`retry`: how often and when a failed record is tried again."""

    max_reconsume_times: Annotated[int, TIMES] = Field(
        default=16,
        description=(
            "Retries, not deliveries: 3 means at most four deliveries, and 0 sends the first failure to the DLQ."
        ),
    )
    ladder: Annotated[LadderSpec, LADDER] = Field(
        default="rocketmq",
        description=(
            "What retry n waits: `rocketmq` (10s to 2h, 4h45m40s in all), `pulsar` (1s to 30m), a list of "
            "delays, or a formula. Past its end every retry waits the last delay."
        ),
    )
    levels: Annotated[tuple[int, ...], DELAYS] = Field(
        default=TABLE,
        description=(
            "The delay table, rising: one topic for each, and what a numbered level means. Delays of the ladder "
            "that are not in it get a topic too. A wait below the shortest level is made in memory, or in that level "
            "when such waits take a quarter of `deliver.max_held`."
        ),
    )
    ordered_interval: Annotated[int, duration("10ms", "30s")] = Field(
        default=ms("1s"),
        description="The wait between two tries in place, in ordered mode; the ladder is not used there.",
    )
    ordered_max_times: Annotated[int | None, TIMES.or_null()] = Field(
        default=None,
        description=(
            "Tries in place before an ordered record goes to the DLQ. null is without limit: order then means "
            "that everything waits for the failing record."
        ),
    )
    nack_redelivery_delay: Annotated[int, duration("1s", "10d")] = Field(
        default=ms("1m"),
        description="When a record that the service nacked is delivered again; checked every third of it.",
    )
    max_deaths: Annotated[int, whole(1, 1000)] = Field(
        default=3,
        description=(
            "How often a record may be out while the service dies before it is put into the DLQ as the suspect, "
            "so that it does not kill every instance in turn."
        ),
    )
    unknown_topic: Annotated[int, duration("1s", "10d")] = Field(
        default=ms("1h"),
        description=(
            "For how long after its due time a retry of a topic that this instance does not consume is passed on to "
            "instances that do, before it goes to the DLQ as `unknown-topic`. Longer than a roll-out takes."
        ),
    )
    understand: Annotated[tuple[str, ...], many(FOREIGN, ", ".join(SYSTEMS), most=len(SYSTEMS))] = Field(
        default=(),
        description=(
            "Systems whose retry headers count on the main topics, while their retry topics are drained as such: "
            "retries made there are not made again. None by default: whoever writes to a main topic writes them."
        ),
    )


class Pull(Section):
    """`pull`: limits of pull mode."""

    min_invisible: Annotated[int, duration("10ms", "12h")] = Field(
        default=ms("10s"),
        description=(
            "The shortest invisible duration that a receive may ask for; shorter is refused with 400. Short "
            "leases expire while the service still works, and each one costs a retry."
        ),
    )
    max_leased: Annotated[int, whole(1, 65_536)] = Field(
        default=4096,
        description=(
            "Records that may be leased or ready to be received at once, over all partitions. `deliver.max_held` "
            "bounds their bytes."
        ),
    )


class Api(Section):
    """`api`: where the sidecar itself listens."""

    listen: Annotated[str, LISTEN] = Field(
        default="127.0.0.1:8471",
        description="The HTTP API for the service beside the sidecar. Outside loopback it needs `api.token_file`.",
    )
    token_file: Annotated[str | None, text("the path of a file", r".{1,4096}").or_null()] = Field(
        default=None,
        description=(
            "A file with the bearer token that every call but the probes must carry. Read when it is "
            "needed, so that a rotated secret takes effect."
        ),
    )
    probe_listen: Annotated[str | None, LISTEN.or_null()] = Field(
        default="0.0.0.0:8472",
        description=(
            "Where `/livez`, `/readyz`, `/startupz` and `/metrics` are served to the kubelet and Prometheus, "
            "and nothing else is. null serves them on `api.listen` alone."
        ),
    )


class View(Section):
    """`view`: the group-wide view, which a Spark job writes (`reconsume view run`)."""

    enabled: bool = Field(
        default=False,
        description=(
            "Follow the group's view and sums into a local SQLite file and serve them; costs disk by the number of "
            "records that have failed lately, some 600 bytes each, and little memory."
        ),
    )
    folder: Annotated[str | None, FOLDER.or_null()] = Field(
        default=None,
        description=(
            "Where the file is kept, so that a restart goes on where it was. Sidecars may share it: each has a file "
            "of its own. null is a temporary folder: each start then reads the whole view anew."
        ),
    )
    storm_window: Annotated[int, duration("10s", "1h")] = Field(
        default=ms("5m"),
        description="How far back failures count for the storm signal.",
    )
    storm_share: Annotated[float, fraction(0.01, 1)] = Field(
        default=0.5,
        description="A storm is one reason with this part of all failures of the whole group within `storm_window`.",
    )
    storm_min: Annotated[int, whole(1, 1_000_000)] = Field(
        default=100,
        description="The fewest failures of one reason that are a storm; less is an ordinary day.",
    )
    storm_outage: bool = Field(
        default=False,
        description=(
            "Let a storm begin an outage here, once a `storm_window`: deliveries pause, one record probes, and a good "
            "answer to it brings a slow start. A probe that the service fails is an attempt."
        ),
    )


class Tracing(Section):
    """`tracing`: each attempt as an OpenTelemetry span."""

    enabled: bool = Field(
        default=False,
        description=(
            "Export each attempt as a span, linked to the attempt before, and hand its `traceparent` to the service. "
            "Needs `pip install 'reconsume[otel]'`; where to, how often and under which name is said by the variables "
            "of OpenTelemetry, such as `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`."
        ),
    )


class Log(Section):
    """`log`: what is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="The least important line that is still written. `info` writes nothing a record.",
    )
    format: Literal["json", "text"] = Field(
        default="json",
        description="One JSON object a line for machines, or text for people.",
    )
