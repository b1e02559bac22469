"""Which workloads of a stream get a sidecar: opt-in, as with Kustomize's component and the admission policy.

A whole rendered environment may come down the pipe: databases, a web shop, the jobs of a chart. A sidecar of one group
in each of them would deliver records to whatever listens on the port. So the workloads with the label
reconsume.io/inject: "true" are chosen, and those that have a sidecar already; or those that are named by kind and name;
or the only one that there is. Hooks of Helm and Argo CD count as nothing, and so does what opts out.

Two workloads of one group share its partitions. That may be meant, and must be said (`expect_one_workload_each`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from reconsume.sidecar.deploy.workload import (
    WrongManifestError,
    has_sidecar,
    has_unknown_pods,
    is_hook,
    is_workload,
    name_of,
    wish_of,
)
from reconsume.sidecar.errors import RecordError
from reconsume.sidecar.printable import plural, printable

MOST_NAMED = 50
Object = dict[str, Any]


class Choice(NamedTuple):
    """Objects of a stream. `unknown`: those that are chosen, and whose kind nobody understands. `hooks`: left out."""

    chosen: Sequence[Object]
    unknown: Sequence[Object]
    hooks: Sequence[Object]


def choose(objects: Iterable[Object], named: Collection[str]) -> Choice:
    """Return what is chosen. `named`: by the user, as `deployment/orders`.

    Raises RecordError if a name is not there or may not be chosen, or if nothing is chosen of several workloads.
    """
    with_pods = [one for one in objects if is_workload(one) or has_unknown_pods(one)]
    hooks = [one for one in with_pods if is_hook(one)]
    candidates = [one for one in with_pods if not is_hook(one)]
    if named:
        chosen = [one for one in candidates if name_of(one) in named and wish_of(one) is not False]
        if absent := sorted(set(named) - set(map(name_of, chosen))):
            raise RecordError(f"{', '.join(absent)} cannot be chosen; these can be: {listed(candidates)}")
    else:
        candidates = [one for one in candidates if wish_of(one) is not False]
        chosen = [one for one in candidates if wish_of(one) or has_one(one)]
        if not chosen and len(candidates) == 1:
            chosen = candidates
        if not chosen and candidates:
            raise RecordError(
                f"none of {plural(len(candidates), 'workload')} is chosen: give those that shall have a sidecar the "
                f'label reconsume.io/inject: "true", or name them by --workload: {listed(candidates)}'
            )
    unknown = [one for one in chosen if not is_workload(one)]
    return Choice([one for one in chosen if is_workload(one)], unknown, hooks)


def has_one(document: Object) -> bool:
    """Whether an object has a sidecar, as far as it can be read; `with_sidecar` says what is wrong with it."""
    try:
        return is_workload(document) and has_sidecar(document)
    except WrongManifestError:
        return False


def listed(candidates: Sequence[Object]) -> str:
    """Return the names of what may be chosen, the first MOST_NAMED of them."""
    names = sorted(name_of(one) for one in candidates if wish_of(one) is not False)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return printable(", ".join(names[:MOST_NAMED]) or "none") + more


def expect_one_workload_each(chosen: Iterable[Object], groups_of: Callable[[Object], Iterable[object]]) -> None:
    """Raise RecordError if a workload would get a sidecar of a group that another one has.

    `groups_of`: returns what names the groups of a workload in its namespace.
    """
    workloads: defaultdict[object, list[Object]] = defaultdict(list)
    for one in chosen:
        for group in groups_of(one):
            workloads[(one.get("metadata") or {}).get("namespace"), group].append(one)
    for sharing in workloads.values():
        if len(sharing) > 1 and not all(map(has_one, sharing)):
            raise RecordError(
                f"{listed(sharing)} would be one consumer group and share its partitions: give each its own "
                "configuration (reconsume.io/config-map, reconsume.io/group), or --many if that is meant"
            )
