"""Merge the file, the environment and `--set`, and keep the origin of every value.

The only check here is whether a text can be parsed. The model decides which values are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reconsume.sidecar.files import read_given
from reconsume.sidecar.settings.fields import SWITCH, field_at, is_nullable, section_of, takes_text
from reconsume.sidecar.settings.masks import is_path, is_secret
from reconsume.sidecar.settings.sections.kafka_secrets import FILED
from reconsume.sidecar.settings.values import KeyPath
from reconsume.sidecar.settings.yaml_text import dotted, read_yaml

LONGEST = 1024 * 1024
"""Bytes of a configuration file. A longer file is refused."""
PREFIX = "RECONSUME_"
NOT_SETTINGS = ("RECONSUME_CACHE", "RECONSUME_MAVEN_MIRROR")
"""Variables of the Java downloads (`sidecar/java/jars.py`), which have no configuration file."""
# Kubernetes adds these to every pod for each Service. A Service with the name `reconsume` must not stop the sidecar.
SERVICE_LINK = re.compile(r"RECONSUME(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
WITH_USER = re.compile(r"://[^/?#\s]*@")
"""A URL with a user, and perhaps with a password."""
FILES = {
    "kafka.ssl.key.pem": "kafka.ssl.key.location",
    "kafka.ssl.certificate.pem": "kafka.ssl.certificate.location",
    "kafka.sasl.jaas.config": "kafka_secret",
    "deliver.bearer_token": "deliver.bearer_token_file",
    "deliver.signing_secret": "deliver.signing_secret_file",
    "api.token": "api.token_file",
    "operators.token": "operators.token_file",
}
"""Settings that name the file of a secret, by what would be written for the secret itself."""
UNDERSCORED = {"log.level": "log_level"}
"""librdkafka's properties with an underscore. A variable's name cannot distinguish it from a dot."""


@dataclass(slots=True)
class Layers:
    """The given values as one tree.

    `origins` holds, by path, where each part came from.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def put(self, path: tuple[str, ...], value: object, origin: str) -> None:
        """Set one value, and replace what was there."""
        section = self.tree
        for name in path[:-1]:
            below = section.get(name)
            if not isinstance(below, dict):
                below = section[name] = {}
            section = below
        section[path[-1]] = value
        for replaced in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[replaced]
        self.origins[path] = origin

    def origin(self, path: KeyPath) -> str | None:
        """Return where the value at `path` came from. None if it was not given."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return None

    def gives(self, path: tuple[str, ...]) -> bool:
        """Whether the value at `path` was given, alone or as part of a larger value."""
        section: object = self.tree
        for name in path:
            if not isinstance(section, dict) or name not in section:
                return False
            section = section[name]
        return True

    def open_switches(self) -> None:
        """Expand `ui: true` to `ui: {enabled: true}`."""
        for name, value in self.tree.items():
            if switched((name,), value) != (name,):
                self.tree[name] = {SWITCH: value}

    def drop_empty_sections(self) -> None:
        """Remove the sections that are null.

        If all keys of a section are commented out, YAML reads the section as null. It means that nothing is set there.
        """
        for name in [name for name, value in self.tree.items() if value is None]:
            field_info = field_at((name,))
            if field_info is not None and section_of(field_info) is not None:
                del self.tree[name]


def read_file(layers: Layers, path: Path, *, needed: bool) -> None:
    """Read the values of the file. A missing file is a fault only if it is `needed`."""
    try:
        text = read_given(path, LONGEST).decode("utf-8")
    except FileNotFoundError:
        if needed:
            layers.faults.append(f"{path}: there is no such file")
        return
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        layers.faults.append(f"{path}: cannot be read: {reason}")
        return
    document = read_yaml(text)
    layers.faults += [f"{path}: {fault}" for fault in document.faults]
    if isinstance(document.value, dict):
        layers.tree = document.value
        layers.origins = {key_path: f"{path}, line {line}" for key_path, line in document.lines.items()}
        layers.open_switches()
    elif document.value is not None:
        layers.faults.append(f"{path}: must hold keys and values, like `group: billing`, and it holds something else")


def read_environment(layers: Layers, environ: Mapping[str, str]) -> None:
    """Lay the variables `RECONSUME_…` over the tree, outer levels first."""
    for variable, path in sorted(variables(environ), key=lambda pair: (len(pair[1]), pair[0])):
        assign(layers, path, environ[variable], variable)


def variables(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each variable that is a setting, with the path of the setting."""
    for variable in environ:
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        names = variable.removeprefix(PREFIX).lower().split("__")
        if field_at((names[0],)) is None and SERVICE_LINK.fullmatch(variable):
            continue
        if names[0] == "kafka" and len(names) > 1:
            name = ".".join(names[1:]).replace("_", ".")
            names = ["kafka", UNDERSCORED.get(name, name)]
        yield variable, tuple(names)


def read_sets(layers: Layers, sets: Sequence[str]) -> None:
    """Lay each `a.b=value` over the tree, in the given order."""
    for text in sets:
        key, sign, value = text.partition("=")
        path = path_of(key)
        if not sign or not all(path):
            layers.faults.append(f"--set {key}: must be key=value, like --set retry.max_reconsume_times=3")
        else:
            assign(layers, path, value, "--set")


def path_of(key: str) -> tuple[str, ...]:
    """Return the path of a key of `--set`. All of a property of librdkafka is one name."""
    path = tuple(key.strip().split("."))
    return ("kafka", ".".join(path[1:])) if path[0] == "kafka" and len(path) > 1 else path


def secret_of(text: str) -> str | None:
    """Return why a `--set` would show a secret in the list of processes, without the secret; None if it would not."""
    key, _, value = text.partition("=")
    path = path_of(key)
    read = None if is_null(value) else read_yaml(value).value
    secret = next(secrets_in(path, value if read is None and not is_null(value) else read), None)
    if secret is None and WITH_USER.search(value) is None:
        return None
    name = dotted(secret or path)
    if name.endswith("file"):
        return f"--set {name} must be the absolute path of a file; what is not one may be a secret"
    file = FILES.get(name) or (f"{name}.file" if name.removeprefix("kafka.") in FILED else "the configuration file")
    return f"--set {name} has a secret, and every process of this machine sees a command line: give it by {file}"


def secrets_in(path: KeyPath, value: object) -> Iterator[KeyPath]:
    """Yield the path of each value that is a secret, at `path` or below it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from secrets_in((*path, str(name)), inner)
    elif value is not None and is_secret(path) and not is_path(path, value):
        yield path


def assign(layers: Layers, path: tuple[str, ...], text: str, origin: str) -> None:
    """Set one value that came as text: unchanged if the setting is a text, else read as YAML."""
    field_info = field_at(path)
    is_property = path[0] == "kafka" and len(path) > 1
    if is_property or (
        field_info is not None and takes_text(field_info) and not (is_nullable(field_info) and is_null(text))
    ):
        layers.put(path, text, origin)
        return
    document = read_yaml(text)
    if document.faults:
        shown = "" if is_secret(path) or path[0] == "kafka" else f" = {text[:60]}"
        layers.faults += [f"{dotted(path)}{shown}: {fault} ({origin})" for fault in document.faults]
        return
    layers.put(switched(path, document.value), document.value, origin)


def switched(path: tuple[str, ...], value: object) -> tuple[str, ...]:
    """Return the path of a value. True or false for a section with a switch belongs to the switch."""
    field_info = field_at(path) if isinstance(value, bool) else None
    section = None if field_info is None else section_of(field_info)
    return path if section is None or SWITCH not in section.model_fields else (*path, SWITCH)


def is_null(text: str) -> bool:
    """Whether YAML reads a text as null."""
    return text.strip() in ("", "~", "null", "Null", "NULL")
