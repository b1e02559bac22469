"""`policy show`, `policy set`: the retry policy of all instances of the group, changed while they run.

`policy set` makes a plan from the control log and the configuration, refuses what instances could not apply (a policy
that a newer version wrote, level topics that are missing), warns, asks, and writes. The log is looked at again just
before: if another policy came in meanwhile, nothing is written (`group_policy/operations.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET

from reconsume.sidecar.cli.explain import parks_in
from reconsume.sidecar.cli.terminal.arguments import author
from reconsume.sidecar.cli.terminal.confirm import Yes, ask
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Format, Row, clock, talk
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.settle_request import fault_of_why
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings.checks import short_waits_of_instances
from reconsume.sidecar.settings.group_policy import (
    KEYS,
    differences,
    dotted,
    flow,
    levels_of,
    mend_levels,
    overridden,
    policy_values,
    queues_of,
    read_assignments,
    rule_named_by,
)
from reconsume.sidecar.settings.load import Loaded, load_with_origins
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.policy_record import KEY, PolicyHeard, PolicyRecord, parse_record, render_record

if TYPE_CHECKING:
    from reconsume.sidecar.group_policy.operations import PolicyStore
    from reconsume.sidecar.group_policy.state import ControlState, Policies

PLAN = ("key", "old", "new")
SHOWN = ("key", "value", "origin")
RULE = ("rule", "topics", "reasons", "ladder", "max_reconsume_times", "max_age", "dead_letter")

app = typer.Typer(cls=Group, help="The retry policy of the whole group.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


@command(app, "show")
def show(options: Options) -> None:
    """Show the policy in force.

    Each value with where it comes from: the group's record on Kafka, or this configuration, or the default.

    \b
    Example:
      reconsume policy show -o table
    """
    loaded, store = look(options)
    try:
        record = newest(store)
    except ContractError as fault:  # without the topic no policy can have been set
        talk(f"warning: {fault}")
        record = None
    settings = in_force(loaded.settings, record)
    values = {} if record is None else record.policy
    rows = [
        {"key": key, "value": value, "origin": origin_of(loaded, key, values)}
        for key, value in policy_values(settings).items()
    ]
    because = f", because {record.why}" if record is not None and record.why else ""
    talk("no policy is set for the group" if record is None else f"set by {record.who} at {clock(record.at)}{because}")
    if record is not None and record.was:
        talk(f"before: {', '.join(f'{key}={flow(value)}' for key, value in record.was.items())}")
    if loaded.settings.policy_mode == "strict" and differences(loaded.settings, settings):
        talk("warning: policy_mode is strict, and an instance with this configuration refuses to start")
    options.output.rows(SHOWN, rows)
    if settings.retry.rules and options.output.format is Format.TABLE:
        options.output.rows(RULE, rule_rows(settings))


Assignments = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help=f"Keys: {', '.join(KEYS)}.")]
Unset = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="KEY", help="Let each instance's configuration decide again; may be repeated."),
]
Who = Annotated[str | None, typer.Option("--who", help="Who changes it; user@host by default.")]
Why = Annotated[str, typer.Option("--why", help="The reason, for whoever looks later.")]
Replace = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="Also where a newer version wrote the policy, and what it says is lost.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan; change nothing.")]


@command(app, "set")
def set_(
    options: Options,
    assignments: Assignments = None,
    unset: Unset = None,
    who: Who = None,
    why: Why = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    replace: Replace = False,
) -> int | None:
    """Set values for the whole group.

    All instances follow within seconds, without a restart; records that wait keep their due time. A plan is shown
    first. Level topics that the values need must exist.

    \b
    Examples:
      reconsume policy set max_reconsume_times=3 timeout=30s --why "the ledger is slow this week"
      reconsume policy set 'ladder=[10s, 1m, 10m]' --yes
      reconsume policy set 'rules.busy={reasons: [http-409], ladder: [1m, 5m]}'
      reconsume policy set rules.busy=null
      reconsume policy set --unset ladder
    """
    pairs, dropped = read_pairs(assignments or [], unset or [])
    if why and (fault := fault_of_why(why)):
        raise typer.BadParameter(f"--why: {fault}")
    loaded, store = look(options)
    state = store.read()
    if not replace:
        expect_readable(state.policies)
    record, by = followed(state.policies), author(who)
    old_settings = in_force(loaded.settings, record)
    assigned = read_assignments(old_settings, pairs, "policy set")
    kept = {key: value for key, value in ({} if record is None else record.policy).items() if key not in dropped}
    new = kept | assigned
    settings = overridden(loaded.settings, new)
    rows = plan_of(record, new, old_settings, settings)
    if not rows:
        talk("nothing would change")
        return None
    options.output.talk_rows(PLAN, rows)
    if parks_in(old_settings) and not parks_in(settings):
        talk(f"warning: {parked_text(settings)}; `{hint('retries list --blocked')}` shows it")
    warn_of_short_waits(old_settings, settings, state)
    expect_levels(settings)
    if not dry_run:
        if not yes:
            ask(f"Set {plural(len(rows), 'value')} for the whole group?")
        was = {str(row["key"]): row["old"] for row in rows}
        offset = store.write(fitting(PolicyRecord(new, by, wall(), was, why=why or UNSET)), state)
        talk(f"written to {settings.names.policy} at offset {offset}; the instances follow within seconds")
    if dry_run:
        talk("nothing was written")
    options.output.rows_after(rows, PLAN, rows)
    return None


def look(options: Options) -> tuple[Loaded, PolicyStore]:
    """Load the configuration and open the policy topic."""
    from reconsume.sidecar.group_policy.operations import (
        PolicyStore,  # the Kafka client is slow to import, and --help needs none
    )

    loaded = load_with_origins(options.config, options.sets)
    return loaded, PolicyStore(loaded.settings.kafka, loaded.settings.names)


def governed(settings: Settings) -> Settings:
    """Return the settings with the group's present policy applied.

    Raises ContractError if the policy topic is missing, BrokerError if Kafka does not answer.
    """
    from reconsume.sidecar.group_policy.operations import PolicyStore

    return in_force(settings, newest(PolicyStore(settings.kafka, settings.names)))


def newest(store: PolicyStore) -> PolicyRecord | None:
    """Return the policy that instances follow; print a warning for each record that they skip."""
    return followed(store.read().policies)


def followed(policies: Policies) -> PolicyRecord | None:
    """Return the policy that instances follow, like `newest`, of a log that is already read."""
    for entry in policies.entries:
        if entry.fault:
            talk(f"warning: the policy at offset {entry.offset} is passed over: {entry.fault}")
    return policies.in_force


def in_force(settings: Settings, record: PolicyRecord | None) -> Settings:
    """Return the settings with the group's values applied. If those are invalid, return the configuration's, as
    instances do."""
    from reconsume.sidecar.errors import ConfigError

    try:
        return overridden(settings, {} if record is None else record.policy)
    except ConfigError as fault:
        for problem in fault.problems:
            talk(f"warning: the group's policy cannot be applied: {problem}")
        return settings


def fitting(record: PolicyRecord) -> PolicyRecord:
    """Return a record that instances can read: if it is too large, without the keys that this version does not know."""
    if isinstance(parse_record(KEY, render_record(record)), PolicyHeard):
        return record
    unknown = sorted(record.policy.keys() - KEYS.keys())
    talk(f"warning: {plural(len(unknown), 'key')} unknown to this version left out: with them the policy is too large")
    known, was = (
        {key: value for key, value in values.items() if key in KEYS} for values in (record.policy, record.was)
    )
    return PolicyRecord(known, record.who, record.at, was, why=record.why)


def expect_readable(policies: Policies) -> None:
    """Raise ContractError if a newer version wrote the policy: a record of this version would remove its values."""
    if policies.unread is not None:
        raise ContractError(
            f"the group's policy cannot be read: {policies.unread.fault}. Set it with that version; "
            "--replace writes one of this version instead, without the values that it has"
        )


def warn_of_short_waits(old: Settings, new: Settings, state: ControlState) -> None:
    """Print a warning for each wait of a live instance that ends before a delivery may, if the timeout grows.

    `old` and `new`: the settings with the present policy, and with the one to be set. `state`: what the control log
    says of its instances.
    """
    if new.longest_delivery <= old.longest_delivery:
        return
    running = {name: beat.record for name, beat in state.beats.running(wall()).items()}
    for sentence in short_waits_of_instances(new, running):
        talk(f"warning: {sentence}")


def expect_levels(settings: Settings) -> None:
    """Raise ContractError, with the fix, if a level or queue topic that the settings need does not exist."""
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    needed = levels_of(settings) | queues_of(settings)
    missing = needed - Cluster(settings.kafka).find(needed).keys()
    if missing:
        kind, names = "queue" if settings.queued else "level", ", ".join(sorted(missing))
        raise ContractError(f"{kind} topics are {ABSENT}: {names}; create them first: {mend_levels(settings)}")


def read_pairs(assignments: Sequence[str], unset: Sequence[str]) -> tuple[list[tuple[str, str]], frozenset[str]]:
    """Return the keys and texts to set, and the keys to drop. Raises BadParameter if one is invalid, or if there are
    none."""
    pairs = []
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign:
            raise typer.BadParameter(f"{text}: must be KEY=VALUE, like max_reconsume_times=3")
        pairs.append((key.strip(), value))
    for key in (*(key for key, _ in pairs), *unset):
        if key not in KEYS and (rule_named_by(key) is None or key in unset):
            bare = next((known for known in KEYS if dotted(known) == key), None)
            every = f"the group can set {', '.join(KEYS)}, and one rule by rules.NAME"
            advice = f"write {bare}" if bare is not None else every
            raise typer.BadParameter(f"{key}: {advice}")
    if not pairs and not unset:
        raise typer.BadParameter("nothing to set: give KEY=VALUE, or --unset KEY")
    return pairs, frozenset(unset)


def plan_of(record: PolicyRecord | None, new: Mapping[str, object], before: Settings, after: Settings) -> list[Row]:
    """Return a row for each changed key: its value changes for this configuration, or it is set or unset for all
    instances."""
    old = {} if record is None else record.policy
    values, later = policy_values(before), policy_values(after)
    changed = {key for key in KEYS if old.get(key, ...) != new.get(key, ...) or values[key] != later[key]}
    return [{"key": key, "old": values[key], "new": later[key]} for key in KEYS if key in changed]


def parked_text(after: Settings) -> str:
    """Return what becomes of the records that are parked when the group parks no more."""
    if after.queued:
        return "what is parked becomes a dead letter, unless it is settled before"
    return f"what is parked stays so, and its key with it, until it is settled (`{hint('settle --parked')}`)"


def origin_of(loaded: Loaded, key: str, record: Mapping[str, object]) -> str:
    """Return where a value comes from: the record, its key in the configuration, or the default."""
    if key in record:
        return "record"
    path = KEYS[key]
    return (loaded.layers.origin(path) if path in loaded.settings.configured else None) or "default"


def rule_rows(settings: Settings) -> Iterator[Row]:
    """Yield a row for each rule by topic and reason, in their order: the first that matches decides."""
    for rule, written in zip(settings.retry.rules, policy_values(settings)["rules"], strict=True):  # type: ignore[call-overload]
        yield {"rule": rule.name, **{key: flow(value) for key, value in written.items() if key != "name"}}
