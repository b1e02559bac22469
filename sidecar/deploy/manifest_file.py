"""Change the sidecar of each workload in a file of manifests. Every other byte stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import yaml

from reconsume.sidecar.deploy.workload import WrongManifestError, has_sidecar, is_workload, opts_out
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


class State(StrEnum):
    """The result for an object."""

    ADDED = "sidecar added"
    UPDATED = "sidecar updated"
    REMOVED = "sidecar removed"
    SAME = "unchanged"
    PASSED = "passed over"


class Done(NamedTuple):
    """The result for one object. `what` is its kind and name."""

    what: str
    state: State


class Changed(NamedTuple):
    """The whole new text, and one result for each object."""

    text: str
    objects: tuple[Done, ...]


def change_all(name: str, text: str, change: Change) -> Changed:
    """Return the text of the file `name` with `change` made to every workload. Raises ConfigError with all faults."""
    documents, done, problems = [], [], []
    for line, document in split(text):
        if SEPARATOR.fullmatch(document):
            documents.append(document)
            continue
        try:
            old = load_manifest(document, LARGEST)
            new, rows = _changed(old, change)
            documents.append(revise(document, old, new))
            done += rows
        except yaml.YAMLError as error:
            place, words = described(error, document, line + 1)
            problems.append(f"{name}, {place}: {words}" if place else f"{name}: {words}")
        except (WrongManifestError, CannotReviseError) as error:
            problems.append(f"{name}, the document from line {line + 1}: {error}")
    if not problems and not done:
        problems.append(f"{name}: holds nothing of Kubernetes")
    if problems:
        raise ConfigError(problems)
    return Changed("".join(documents), tuple(done))


def split(text: str) -> Iterator[tuple[int, str]]:
    """Yield the documents and the separators between them, each with the number of its first line, from 0."""
    start = 0
    for mark in SEPARATOR.finditer(text):
        yield text.count("\n", 0, start), text[start : mark.start()]
        yield text.count("\n", 0, mark.start()), mark.group()
        start = mark.end()
    yield text.count("\n", 0, start), text[start:]


def _changed(document: object, change: Change) -> tuple[object, list[Done]]:
    """Return the changed document, and the result for each object in it. Raises WrongManifestError."""
    if document is None:
        return None, []
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        raise WrongManifestError("it has no kind, so it is nothing of Kubernetes")
    if _is_list(document) and document["items"]:
        pairs = [_changed(item, change) for item in document["items"]]
        return {**document, "items": [new for new, _ in pairs]}, [row for _, rows in pairs for row in rows]
    if not is_workload(document):
        return document, [Done(_name(document), State.PASSED)]
    try:
        if opts_out(document):
            return document, [Done(_name(document), State.PASSED)]
        new = change(document)
        return new, [Done(_name(document), _state(document, new))]
    except WrongManifestError as error:
        raise WrongManifestError(f"{_name(document)}: {error}") from error


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


def _name(document: Object) -> str:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return f"{document['kind'].lower()}/{metadata.get('name') or metadata.get('generateName') or '?'}"
