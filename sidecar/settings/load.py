"""Load the settings: merge the file, the environment and `--set`, read them by the table, and check them.

`load` is what commands and the runtime call, once, at their start. The steps are:

1. `Layers` merges the sources into one tree, and keeps the origin of every value: a file and line, a variable, `--set`.
   A file may name one below it, `base: common.yaml`: sections are merged by key, lists replaced.
   The only check there is whether a text can be parsed. A text from outside is read as YAML, unless the setting is
   itself a text (`Kind.as_text`).
2. `validate` reads the tree by the table of settings, and checks the settings against each other (`checks.py`). Where a
   value is wrong, its default takes its place, so that the others can still be checked.
3. All faults of both steps are raised together, as one ConfigError with a sentence for each.

`group_policy`, `deploy/annotations` and `deploy/starter` go through the same steps with trees of their own, so a wrong
value is refused with the same sentence wherever it is given. Only this module reads settings from the process
environment, and only when `load` is called. Nothing is kept between calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import read_given
from reconsume.sidecar.settings.checks import cross_faults
from reconsume.sidecar.settings.faults import is_path, is_secret, masked, sentence
from reconsume.sidecar.settings.kafka import FILED, Kafka, good_properties
from reconsume.sidecar.settings.model import LEAVES, ROWS, Settings, values_of
from reconsume.sidecar.settings.table import SWITCH, Fault, KeyPath, dotted, read_rows
from reconsume.sidecar.settings.yaml_text import read_yaml

DEFAULT_FILE = Path("reconsume.yaml")
CONTAINER_FILE = Path("/etc/reconsume/reconsume.yaml")
"""The file that is read where there is no DEFAULT_FILE: our manifests mount it there, so that `kubectl exec` needs no
`-c`."""
STAND_INS: dict[str, Any] = {"group": "g", "topics": ["t"], "kafka": {"bootstrap.servers": "b:1"}}
"""Values for required settings that are missing or wrong. With them the other settings can still be checked against
each other."""
OF_ONE_GROUP: tuple[tuple[str, ...], ...] = (("group",), ("topics",))
"""The settings that a file with `ui.groups` need not have."""
FOR_MANY = (
    "the file names groups in ui.groups, which `reconsume ui` and `reconsume groups` show; commands that work on Kafka "
    "take --group NAME"
)
BASE = "base"
"""The key by which a file names the one that it extends. It is no setting: only a file has it."""
LONGEST = 1024 * 1024
"""Bytes of a configuration file. A longer file is refused."""
NULLS = ("", "~", "null", "Null", "NULL")
"""Texts that YAML reads as null."""
PREFIX = "RECONSUME_"
NOT_SETTINGS = frozenset({"RECONSUME_CACHE", "RECONSUME_MAVEN_MIRROR"})
"""Variables of the Java downloads (`sidecar/java/jars.py`), which have no configuration file."""
# Kubernetes adds these to every pod for each Service. A Service with the name `reconsume` must not stop the sidecar.
SERVICE_LINK = re.compile(r"RECONSUME(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
UNDERSCORED = {"log.level": "log_level"}
"""librdkafka's properties with an underscore. A variable's name cannot distinguish it from a dot."""
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


# --- what the sources give, merged


@dataclass(slots=True)
class Layers:
    """The given values as one tree, of which a later source replaces what an earlier one gave.

    `origins` holds, by path, where each part came from. `faults` are the sentences about texts that cannot be parsed.
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
        self.origins = {known: where for known, where in self.origins.items() if known[: len(path)] != path}
        self.origins[path] = origin

    def assign(self, path: tuple[str, ...], text: str, origin: str) -> None:
        """Set one value that came as text: unchanged if the setting is a text, otherwise read as YAML."""
        if path == (BASE,):
            self.faults.append(f"base: only a file names its base; variables and --set lie over both ({origin})")
            return
        row = ROWS.get(path)
        is_property = path[0] == "kafka" and len(path) > 1
        if is_property or (row is not None and row.kind.as_text and not (row.kind.nullable and text.strip() in NULLS)):
            self.put(path, text, origin)
            return
        document = read_yaml(text)
        if document.faults:
            shown = "" if is_secret(path) or path[0] == "kafka" else f" = {text[:60]}"
            self.faults += [f"{dotted(path)}{shown}: {fault} ({origin})" for fault in document.faults]
            return
        self.put(switched(path, document.value), document.value, origin)

    def origin(self, path: KeyPath) -> str | None:
        """Return where the value at `path` came from. None if it was not given."""
        lengths = range(len(path), 0, -1)
        return next((self.origins[path[:length]] for length in lengths if path[:length] in self.origins), None)

    def problems(self, faults: Iterable[Fault]) -> list[str]:
        """Return the sentences about texts that cannot be parsed, and about `faults`, each with its origin."""
        return [*self.faults, *(sentence(fault, self.origin(fault.path)) for fault in faults)]

    def checked(self) -> Settings:
        """Return the settings. Raises ConfigError with every fault."""
        settings, faults = validate(self.tree)
        problems = self.problems(faults)
        if settings is None or problems:
            raise ConfigError(problems)
        return settings


def paths_in(tree: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key in a tree of mappings."""
    for name, value in tree.items():
        yield (*above, name)
        if isinstance(value, Mapping):
            yield from paths_in(value, (*above, name))


def is_section(path: tuple[str, ...]) -> bool:
    """Whether there is a section at `path`."""
    return path in ROWS and path not in LEAVES


def remove_empty_sections(tree: dict[str, Any], above: tuple[str, ...] = ()) -> None:
    """Remove each section that is null: YAML reads one so whose keys are all commented out, and it sets nothing."""
    for name, value in list(tree.items()):
        if is_section((*above, name)) and value is None:
            del tree[name]
        elif is_section((*above, name)) and isinstance(value, dict):
            remove_empty_sections(value, (*above, name))


def switched(path: tuple[str, ...], value: object) -> tuple[str, ...]:
    """Return the path of a value. True or false for a section with a switch belongs to the switch."""
    return (*path, SWITCH) if isinstance(value, bool) and (*path, SWITCH) in ROWS else path


def read_file(layers: Layers, path: Path, *, needed: bool) -> None:
    """Lay the values of the file over those of its base. A missing file is a fault only if it is `needed`."""
    document = read_document(layers, path, needed=needed)
    if document is None:
        return
    base = document.tree.pop(BASE, None)
    if (BASE,) in document.lines:
        where = f"({path}, line {document.lines[BASE,]})"
        if not isinstance(base, str) or not base.strip() or base.startswith("/") or "://" in base:
            layers.faults.append(f"base: must be the path of a file, relative to this one {where}")
        elif (below := read_document(layers, path.parent / base, needed=True, why=f"base = {base} {where}: ")) is None:
            return  # what the base has must not be reported as missing
        else:
            if (BASE,) in below.lines:
                line = below.lines[BASE,]
                layers.faults.append(f"base: a base has no base of its own ({path.parent / base}, line {line})")
                below.tree.pop(BASE)
            lay_over(layers, below)
    lay_over(layers, document)


@dataclass(frozen=True, slots=True)
class FileLayer:
    """The values of one file, without empty sections, and the line of each key."""

    path: Path
    tree: dict[str, Any]
    lines: Mapping[KeyPath, int]


def read_document(layers: Layers, path: Path, *, needed: bool, why: str = "") -> FileLayer | None:
    """Return the values of one file; None if it cannot be read. Its faults are kept, and begin with `why` then."""
    try:
        text = read_given(path, LONGEST).decode("utf-8")
    except FileNotFoundError:
        if needed:
            layers.faults.append(f"{why}{path}: there is no such file")
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        layers.faults.append(f"{why}{path}: cannot be read: {reason}")
        return None
    document = read_yaml(text)
    layers.faults += [f"{path}: {fault}" for fault in document.faults]
    if isinstance(document.value, dict):
        switches = {name: switched((name,), value) != (name,) for name, value in document.value.items()}
        tree = {name: {SWITCH: value} if switches[name] else value for name, value in document.value.items()}
        remove_empty_sections(tree)
        return FileLayer(path, tree, document.lines)
    if document.value is not None:
        layers.faults.append(f"{path}: must hold keys and values, like `group: billing`, and it holds something else")
    return None if document.value is not None or document.faults else FileLayer(path, {}, {})


def lay_over(layers: Layers, layer: FileLayer) -> None:
    """Lay a file's values over what is there: sections and the properties of Kafka by key, anything else as a whole."""

    def lay(tree: dict[str, Any], values: Mapping[str, Any], above: tuple[str, ...]) -> None:
        for name, value in values.items():
            path, before = (*above, name), tree.get(name)
            by_key = is_section(path) or path == ("kafka",)
            if by_key and isinstance(before, dict) and isinstance(value, dict):
                lay(before, value, path)
            else:
                layers.origins = {key: where for key, where in layers.origins.items() if key[: len(path)] != path}
                tree[name] = value

    lay(layers.tree, layer.tree, ())
    layers.origins |= {key: f"{layer.path}, line {line}" for key, line in layer.lines.items()}


def read_environment(layers: Layers, environ: Mapping[str, str]) -> None:
    """Lay the variables `RECONSUME_…` over the tree, outer levels first."""
    paths = {}
    for variable in environ.keys() - NOT_SETTINGS:
        names = variable.removeprefix(PREFIX).lower().split("__")
        is_link = (names[0],) not in ROWS and SERVICE_LINK.fullmatch(variable)
        if not variable.startswith(PREFIX) or is_link:
            continue
        if names[0] == "kafka" and len(names) > 1:
            name = ".".join(names[1:]).replace("_", ".")
            names = ["kafka", UNDERSCORED.get(name, name)]
        paths[variable] = tuple(names)
    ordered = sorted(paths.items(), key=lambda pair: (len(pair[1]), pair[0]))
    first: dict[tuple[str, ...], str] = {}
    for variable, path in ordered:
        if (other := first.setdefault(path, variable)) != variable:
            layers.faults.append(f"{dotted(path)}: is given by two variables, {other} and {variable}; leave one out")
    for variable, path in ordered:
        layers.assign(path, environ[variable], variable)


def read_sets(layers: Layers, sets: Sequence[str]) -> None:
    """Lay each `a.b=value` over the tree, in the given order."""
    for text in sets:
        key, sign, value = text.partition("=")
        path = path_of(key)
        if not sign or not all(path):
            layers.faults.append(f"--set {key}: must be key=value, like --set retry.max_reconsume_times=3")
        else:
            layers.assign(path, value, "--set")


def path_of(key: str) -> tuple[str, ...]:
    """Return the path of a key of `--set`. All of a property of librdkafka is one name."""
    path = tuple(key.strip().split("."))
    return ("kafka", ".".join(path[1:])) if path[0] == "kafka" and len(path) > 1 else path


def secret_of(text: str) -> str | None:
    """Return why a `--set` would show a secret in the list of processes, without the secret; None if it would not."""
    key, _, value = text.partition("=")
    path, read = path_of(key), read_yaml(value).value
    # A text that YAML reads as nothing, such as #hunter2, may be a secret, too.
    secret = next(secrets_in(path, value if read is None and value.strip() not in NULLS else read), None)
    if secret is None and WITH_USER.search(value) is None:
        return None
    name = dotted(secret or path)
    if name.endswith("file"):
        return f"--set {name} must be the absolute path of a file; what is not one may be a secret"
    file = FILES.get(name) or (f"{name}.file" if name.removeprefix("kafka.") in FILED else "the configuration file")
    return f"--set {name} has a secret, and every process of this machine sees a command line: give it by {file}"


def masked_set(text: str) -> str:
    """Return a `--set` with the password and the query of a URL in it masked."""
    key, _, value = text.partition("=")
    return f"{key}={masked(path_of(key), value)}"


def secrets_in(path: KeyPath, value: object) -> Iterator[KeyPath]:
    """Yield the path of each value that is a secret, at `path` or below it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from secrets_in((*path, str(name)), inner)
    elif value is not None and is_secret(path) and not is_path(path, value):
        yield path


# --- from the tree to settings


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, with the origin of each."""

    settings: Settings
    layers: Layers


Judge: TypeAlias = Callable[[Mapping[str, str]], Iterable[str]]
"""Returns a sentence for each property that librdkafka refuses."""


def load(
    file: Path | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    judge: Judge = lambda properties: (),
    *,
    many: bool = False,
) -> Settings:
    """Return the checked settings. Raises ConfigError with every fault.

    Without `file`, reconsume.yaml is read if it exists, otherwise that of a container. `judge`: as in
    `load_with_origins`. `many`: the file may name groups in `ui.groups` instead of one group; then `group` is empty.
    """
    settings = load_with_origins(file, sets, environ, judge).settings
    if not settings.group and not many:
        raise ConfigError([f"group: is required here; {FOR_MANY}"])
    return settings


def load_with_origins(
    file: Path | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    judge: Judge = lambda properties: (),
) -> Loaded:
    """Return the same settings as `load`, with the origin of each value. Raises ConfigError with every fault.

    `judge`: returns what librdkafka refuses of single properties. It is asked if there are other faults, so that all of
    them are reported together; without other faults the client check asks (`kafka/client_check.py`).
    """
    layers = Layers()
    default = CONTAINER_FILE if CONTAINER_FILE.exists() and not DEFAULT_FILE.exists() else DEFAULT_FILE
    read_file(layers, file or default, needed=file is not None)
    if layers.faults and not layers.tree:
        raise ConfigError(layers.faults)  # an unreadable file must not also be reported for each setting that it lacks
    read_environment(layers, os.environ if environ is None else environ)
    read_sets(layers, sets)
    remove_empty_sections(layers.tree)
    try:
        return Loaded(layers.checked(), layers)
    except ConfigError as refused:
        problems = [*refused.problems, *judge(good_properties(layers.tree.get("kafka")))]
        if file is not None or default.exists():
            raise ConfigError(problems) from None
        missing = f"there is no {DEFAULT_FILE} here; name a file with -c"
        # Where nothing at all is given, what each setting lacks would hide the one sentence that helps.
        raise ConfigError([*(problems if layers.tree else layers.faults), missing]) from None


def validate(tree: Mapping[str, Any]) -> tuple[Settings | None, list[Fault]]:
    """Return the settings and all faults, of single settings and between settings. None instead of faulty settings."""
    values, faults = read_rows(Settings, tree)
    stand_ins, _ = read_rows(Settings, STAND_INS)
    is_for_many = names_groups(tree)
    if is_for_many:
        faults = [fault for fault in faults if fault.path not in OF_ONE_GROUP]
        values |= {"group": "", "topics": ()}
    folder = values.get("kafka_secret")
    if folder is not None and "kafka" in values:
        values["kafka"] = Kafka(values["kafka"].properties, Path(folder))  # nothing in the folder is read here
    settings = Settings(**(stand_ins | values), configured=frozenset(paths_in(tree)))
    wrong = [fault.path for fault in faults]
    faults += cross_faults(settings, [*wrong, *OF_ONE_GROUP, ("deliver",), ("retry",)] if is_for_many else wrong)
    return (None if faults else settings), faults


def names_groups(tree: Mapping[str, Any]) -> bool:
    """Return whether `ui.groups` takes the place of `group` and `topics`, neither of which is given."""
    ui = tree.get("ui")
    return bool(isinstance(ui, Mapping) and ui.get("groups")) and not any(path[0] in tree for path in OF_ONE_GROUP)


# --- what is in force


@dataclass(frozen=True, slots=True)
class Effective:
    """One setting in force, in a form that may be shown.

    `origin` is `default`, a file and line, a variable, or `--set`.
    """

    key: str
    value: Any
    origin: str


def effective(loaded: Loaded) -> list[Effective]:
    """Return every setting in force, with secrets masked and one row for each property of `kafka`."""
    rows: list[Effective] = []
    for path, value in values_of(loaded.settings).items():
        pairs = [((*path, name), text) for name, text in value.items()] if path == ("kafka",) else [(path, value)]
        for key, shown in pairs:
            origin = loaded.layers.origin(key) if path in loaded.settings.configured else None
            rows.append(Effective(".".join(key), masked(key, shown), origin or "default"))
    return rows
