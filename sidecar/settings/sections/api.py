"""The section `api`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reconsume.sidecar.settings.addresses import LISTEN_FORMS, parse_listen
from reconsume.sidecar.settings.values import Section, many, text

LISTEN = text(LISTEN_FORMS, r"\S{1,255}", parse_listen)
HOST = text("the name of a host, without a port", r"[a-zA-Z0-9._-]{1,253}")


class Api(Section):
    """`api`: where the sidecar itself listens."""

    listen: Annotated[str, LISTEN] = Field(
        default="127.0.0.1:8471",
        description="The HTTP API for the service beside the sidecar. Outside loopback it needs `api.token_file`.",
    )
    token_file: Annotated[str | None, text("the path of a file", r".{1,4096}").or_null()] = Field(
        default=None,
        description=(
            "A file with the service's bearer tokens, one a line, of at least 16 characters. Every call but the probes "
            "must carry one of them, or an operator's. A line `NAME: TOKEN` names its token for the audit; one that "
            "begins with # is a comment. Read when it is needed, so that a rotated secret takes effect."
        ),
    )
    hosts: Annotated[tuple[str, ...], many(HOST, "names of hosts", most=64)] = Field(
        default=(),
        description=(
            "The names by which the API may be called, such as a Service's, besides `localhost` and the address of "
            "`api.listen`. Any other is refused with 421, so that no page can rebind its name to this address."
        ),
    )
    probe_listen: Annotated[str | None, LISTEN.or_null()] = Field(
        default="0.0.0.0:8472",
        description=(
            "Where `/livez`, `/readyz`, `/startupz` and `/metrics` are served to the kubelet and Prometheus, "
            "and nothing else is. null serves them on `api.listen` alone."
        ),
    )
