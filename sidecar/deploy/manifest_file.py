"""Change the sidecar of each workload in a file of manifests. Every other byte stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import yaml

from reconsume.sidecar.deploy.workload import WrongManifestError, has_sidecar, is_workload, name_of
from reconsume.sidecar.deploy.yaml_edit import CannotReviseError, revise
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.settings.yaml_text import described, load_manifest

SEPARATOR = re.compile(r"^(?:%[^\n]*\n)*---(?=\s|$)", re.MULTILINE)
"""A line that begins so ends the document before it, wherever it stands (YAML 1.2, 9.1.2). Directives before it are
part of the match."""
LARGEST = 500_000
"""Nodes of one document. A List of a whole namespace may have a hundred thousand."""
Object = dict[str, Any]
Change = Callable[[Object], Object]


SCALER = "HorizontalPodAutoscaler"


class State(StrEnum):
    """The result for an object."""

    ADDED = "sidecar added"
    UPDATED = "sidecar updated"
    REMOVED = "sidecar removed"
    SAME = "unchanged"
    PASSED = "passed over"
    SCALES = "passed over; where it scales by CPU, the request of the sidecar is a part of the sum"


class Done(NamedTuple):
    """The result for one object. `what` is its kind and name."""

    what: str
    state: State


class Changed(NamedTuple):
    """The whole new text, and one result for each object."""

    text: str
    objects: tuple[Done, ...]


class Document(NamedTuple):
    """A document, or the separator between two. `line`: the number of its first line, from 0."""

    line: int
    text: str
    value: Any = None


class ManifestFile:
    """A file of manifests, read. Raises ConfigError with every fault of its YAML."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._documents, problems = list[Document](), list[str]()
        for line, source in split(text):
            try:
                value = None if SEPARATOR.fullmatch(source) else load_manifest(source, LARGEST)
                self._documents.append(Document(line, source, value))
                for one in objects_in(value):
                    if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
                        raise WrongManifestError("it has no kind, so it is nothing of Kubernetes")
            except yaml.YAMLError as error:
                where, words = described(error, source, line + 1)
                problems.append(f"{name}, {where}: {words}" if where else f"{name}: {words}")
            except WrongManifestError as error:
                problems.append(f"{name}, the document from line {line + 1}: {error}")
        if not problems and all(document.value is None for document in self._documents):
            problems.append(f"{name}: holds nothing of Kubernetes")
        if problems:
            raise ConfigError(problems)

    def objects(self) -> Iterator[Object]:
        """Yield every object, those of a List too."""
        for document in self._documents:
            yield from objects_in(document.value)

    def changed(self, change: Change, is_chosen: Callable[[Object], bool] = is_workload) -> Changed:
        """Return the text with `change` made to every chosen workload. Raises ConfigError with all faults."""
        texts, done, problems = list[str](), list[Done](), list[str]()
        for document in self._documents:
            try:
                new, rows = _changed(document.value, change, is_chosen)
                texts.append(document.text if new is document.value else revise(document.text, document.value, new))
                done += rows
            except (WrongManifestError, CannotReviseError) as error:
                problems.append(f"{self.name}, the document from line {document.line + 1}: {error}")
        if problems:
            raise ConfigError(problems)
        return Changed("".join(texts), tuple(done))


def change_all(name: str, text: str, change: Change) -> Changed:
    """Return the text of the file `name` with `change` made to every workload. Raises ConfigError with all faults."""
    return ManifestFile(name, text).changed(change)


def split(text: str) -> Iterator[tuple[int, str]]:
    """Yield the documents and the separators between them, each with the number of its first line, from 0."""
    start = 0
    for mark in SEPARATOR.finditer(text):
        yield text.count("\n", 0, start), text[start : mark.start()]
        yield text.count("\n", 0, mark.start()), mark.group()
        start = mark.end()
    yield text.count("\n", 0, start), text[start:]


def objects_in(value: Any) -> Iterator[Any]:
    """Yield what a document holds: itself, or the items of a list."""
    if isinstance(value, dict) and isinstance(value.get("kind"), str) and _is_list(value) and value["items"]:
        for item in value["items"]:
            yield from objects_in(item)
    elif value is not None:
        yield value


def _changed(document: Any, change: Change, is_chosen: Callable[[Object], bool]) -> tuple[object, list[Done]]:
    """Return the changed document, and the result for each object in it. Raises WrongManifestError."""
    if document is None:
        return None, []
    if _is_list(document) and document["items"]:
        pairs = [_changed(item, change, is_chosen) for item in document["items"]]
        return {**document, "items": [new for new, _ in pairs]}, [row for _, rows in pairs for row in rows]
    if not is_chosen(document):
        return document, [Done(name_of(document), State.SCALES if document["kind"] == SCALER else State.PASSED)]
    try:
        new = change(document)
        return new, [Done(name_of(document), _state(document, new))]
    except WrongManifestError as error:
        raise WrongManifestError(f"{name_of(document)}: {error}") from error


def _is_list(document: Object) -> bool:
    """Whether it is a List, or a list of one kind (DeploymentList) whose items state their kind."""
    kind, items = document["kind"], document.get("items")
    if kind == "List":
        return isinstance(items, list)
    return (
        kind.endswith("List")
        and isinstance(items, list)
        and all(isinstance(one, dict) and "kind" in one for one in items)
    )


def _state(old: Object, new: Object) -> State:
    if old == new:
        return State.SAME
    if not has_sidecar(new):
        return State.REMOVED
    return State.UPDATED if has_sidecar(old) else State.ADDED
