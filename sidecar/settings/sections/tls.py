"""The section `deliver.tls`: what an https URL of the service is called with."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reconsume.sidecar.settings.values import Section, text

# Absolute, so that a secret that is written in place of its file is refused, and masked in the sentence that says so.
FILE = text("the absolute path of a file", r"/.{0,4095}").or_null()


class Tls(Section):
    """`deliver.tls`: certificates, in files that are read again within 30 s of a change."""

    ca_file: Annotated[str | None, FILE] = Field(
        default=None,
        description=(
            "A file with the certificates (PEM) that are trusted, and no other is. null trusts the CAs of the system, "
            "which are read at the start. The name of the URL is checked in any case."
        ),
    )
    cert_file: Annotated[str | None, FILE] = Field(
        default=None,
        description="A file with the certificate (PEM, with its chain) that is shown to the service (mTLS).",
    )
    key_file: Annotated[str | None, FILE] = Field(
        default=None,
        description="A file with the certificate's key (PEM, without a passphrase). null: it is in `cert_file`.",
    )
