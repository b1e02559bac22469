"""What all sections of the configuration share."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen, strict about types, and no key that we do not know."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")
