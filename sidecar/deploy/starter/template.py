"""Fill the templates of the first files: `@name@` stands for a value."""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return the template with each `@name@` replaced by its value. Raises KeyError for a name without a value."""
    return re.sub(r"@(\w+)@", lambda mark: values[mark[1]], template)
