"""`policy show`, `set`, `apply`: the retry policy of all instances of the group, changed while they run.

`set` changes keys, `apply` makes the policy what a file says. Both make a plan from the control log and the
configuration, refuse what instances could not apply (a policy that a newer version wrote, level topics that are
missing), warn, ask, and write. The log is looked at again just before: if another policy came in meanwhile, nothing is
written (`group_policy/operations.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET

from reconsume.sidecar.cli.explain import parks_in
from reconsume.sidecar.cli.terminal.arguments import author
from reconsume.sidecar.cli.terminal.confirm import Yes
from reconsume.sidecar.cli.terminal.exit_codes import PARTLY
from reconsume.sidecar.cli.terminal.kafka_settings import settings_for_kafka, settings_of_one
from reconsume.sidecar.cli.terminal.operation import carry_out
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Format, Row, clock, talk
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.clock import wall
from reconsume.sidecar.dlq.settle_request import fault_of_why
from reconsume.sidecar.errors import ConfigError, ContractError
from reconsume.sidecar.files import read_plain
from reconsume.sidecar.hints import ABSENT, hint
from reconsume.sidecar.operation import Outcome, Plan, Report, Unrecorded
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings.checks import endless_retries, short_waits_of_instances
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
)
from reconsume.sidecar.settings.model import Settings
from reconsume.sidecar.settings.yaml_text import read_yaml
from reconsume.topics.policy_record import KEY, PolicyHeard, PolicyRecord, parse_record, render_record

if TYPE_CHECKING:
    from reconsume.sidecar.group_policy.agreement import InForce
    from reconsume.sidecar.group_policy.control_log import ControlLog
    from reconsume.sidecar.group_policy.operations import PolicyWritten
    from reconsume.sidecar.group_policy.state import ControlState

PLAN = ("key", "old", "new")
SHOWN = ("key", "value", "origin")
RULE = ("rule", "topics", "reasons", "ladder", "max_reconsume_times", "max_age", "dead_letter")
LARGEST_FILE = 64 * 1024
"""Bytes of a policy in a file, as of its record."""

app = typer.Typer(cls=Group, help="The retry policy of the whole group.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


@command(app, "show")
def show(options: Options) -> None:
    """Show the settings in force.

    Each value with where it comes from: `policy`, the group's; `instances`, the newest settings among the live
    instances, if this configuration has others; `file`, this configuration; or `default`.

    \b
    Example:
      reconsume policy show -o table
    """
    settings, log = look(options)
    try:
        state: ControlState | None = log.read()
    except ContractError as fault:  # without the topic no policy can have been set
        talk(f"warning: {fault}")
        state = None
    current = in_force(settings, state)
    record, origins = current.record, current.origins(settings)
    values = policy_values(current.settings)
    because = f", because {record.why}" if record is not None and record.why else ""
    talk("no policy is set for the group" if record is None else f"set by {record.who} at {clock(record.at)}{because}")
    if record is not None and record.was:
        talk(f"before: {', '.join(f'{key}={flow(value)}' for key, value in record.was.items())}")
    if current.agreed is not None:
        names = ", ".join(current.agreed.instances)
        talk(f"instances: settings {current.agreed.digest} of {names} are the newest, and apply below the policy")
    if settings.policy_mode == "strict" and differences(settings, current.settings):
        talk("warning: policy_mode is strict, and an instance with this configuration refuses to start")
    options.output.rows(SHOWN, [{"key": key, "value": values[key], "origin": origins[key]} for key in values])
    if current.settings.retry.rules and options.output.format is Format.TABLE:
        options.output.rows(RULE, rule_rows(current.settings))


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
) -> int:
    """Set values for the whole group.

    All instances follow within seconds, without a restart; records that wait keep their due time. A plan is shown
    first. Level topics that the values need must exist.

    \b
    Examples:
      reconsume policy set max_reconsume_times=3 timeout=30s --why "the ledger is slow this week"
      reconsume policy set 'ladder=[10s, 1m, 10m]' --yes
      reconsume policy set 'rules=[{name: busy, reasons: [http-409], ladder: [1m, 5m]}]'
      reconsume policy set --unset ladder
    """
    pairs, dropped = read_pairs(assignments or [], unset or [])
    expect_reason(why)
    file, log = look(options)
    state = read_to_change(log, replace=replace)
    assigned = read_assignments(in_force(file, state).settings, pairs, "policy set")
    before = policy_of(state)
    kept = {key: value for key, value in before.items() if key not in dropped}
    by = author(who)
    operation = SetPolicy(file, log, state, kept | assigned, by, why)
    return carry_out(options, operation, by, Unrecorded(), yes=yes, dry_run=dry_run)


PolicyFile = Annotated[
    Path, typer.Option("-f", "--file", metavar="FILE", help="The whole policy: a YAML mapping of its keys.")
]
DriftDryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan; change nothing, and end with 3 if something would change.")
]


@command(app, "apply")
def apply(
    options: Options,
    file: PolicyFile,
    who: Who = None,
    why: Why = "",
    yes: Yes = False,
    dry_run: DriftDryRun = False,
    replace: Replace = False,
) -> int:
    """Make the group's policy what a file says.

    The file is the whole policy: a key that it does not have is unset, and an empty mapping ({}) withdraws the policy.
    Values are compared as they are read, so 60s is 1m. Nothing is written if the group has this policy. The command
    ends with 1 unless the policy in force is the one that it wrote.

    \b
    Examples:
      reconsume policy apply -f policy.yaml --dry-run
      reconsume policy apply -f policy.yaml --yes --who ci
    """
    expect_reason(why)
    settings, log = look(options)
    wanted = read_policy(file, settings)
    state = read_to_change(log, replace=replace)
    by = author(who)
    operation = SetPolicy(settings, log, state, wanted, by, why)
    code = carry_out(options, operation, by, Unrecorded(), yes=yes, dry_run=dry_run)
    return PARTLY if dry_run and operation.rows else code


class SetPolicy:
    """Replace the policy of a control log, which was read as `state`, as an operation. `file`: the configuration.

    The policy is a record of its own, with who has set it and why.
    """

    action = "policy"

    def __init__(
        self, file: Settings, log: ControlLog, state: ControlState, wanted: Mapping[str, object], who: str, why: str
    ) -> None:
        self._file, self._log, self._state = file, log, state
        self._wanted, self._who, self.why = wanted, who, why
        self.rows: Sequence[Row] = ()
        """What would change, a row for each key."""
        self._written: PolicyWritten | None = None

    @property
    def what(self) -> str:
        """How many keys change."""
        return plural(len(self.rows), "value")

    @property
    def changed(self) -> int:
        """1 once the policy is written."""
        return int(self._written is not None)

    def plan(self, _report: Report) -> Plan:
        """Compare the policies. Raises ConfigError, ContractError if instances could not apply it, and BrokerError."""
        state = self._state
        old = in_force(self._file, state).settings
        new = overridden(in_force(self._file, state, with_policy=False).settings, self._wanted)
        self.rows = plan_of(policy_of(state), self._wanted, old, new)
        if not self.rows:
            return Plan(PLAN, [], "", "nothing would change")
        basis = state.policies.newest
        remarks = [
            "the plan is based on no policy" if basis is None else f"the plan is based on the policy at {basis.offset}"
        ]
        if parks_in(old) and not parks_in(new):
            remarks.append(f"warning: {parked_text(new)}; `{hint('retries list --blocked')}` shows it")
        known = endless_retries(old)
        remarks += [f"warning: {sentence}" for sentence in endless_retries(new) if sentence not in known]
        remarks += short_wait_remarks(old, new, state)
        expect_levels(new)
        return Plan(PLAN, self.rows, f"Set {self.what} for the whole group?", "nothing was written", remarks)

    def run(self, _report: Report, _stop: threading.Event) -> None:
        """Write it. Raises ContractError if another policy came in meanwhile, and BrokerError."""
        from reconsume.sidecar.group_policy.operations import write_policy

        was = {str(row["key"]): row["old"] for row in self.rows}
        record = PolicyRecord(dict(self._wanted), self._who, wall(), was, why=self.why or UNSET)
        if not isinstance(parse_record(KEY, render_record(record)), PolicyHeard):
            why = "the policy is too large for its record, with the keys of a newer version that it has"
            raise ContractError(f"{why}: nothing was written; `{hint('policy apply -f FILE')}` writes a whole policy")
        self._written = write_policy(self._log, record, self._state)

    def outcome(self) -> Outcome:
        """Say where the policy is, and what it has replaced."""
        assert self._written is not None
        replaced = [
            f"warning: {name} has written a policy meanwhile, and this one replaces it"
            for name in self._written.replaced
        ]
        where = f"{self._file.names.policy} at offset {self._written.offset}"
        return Outcome([], [*replaced, f"written to {where}; the instances follow within seconds"])


def expect_reason(why: str) -> None:
    """Raise BadParameter if a reason is given that no record may have."""
    if why and (fault := fault_of_why(why)):
        raise typer.BadParameter(f"--why: {fault}")


def look(options: Options) -> tuple[Settings, ControlLog]:
    """Load the configuration and open the policy topic."""
    from reconsume.sidecar.group_policy.control_log import ControlLog  # the Kafka client is slow to import
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    settings = settings_of_one(options) if options.discovered_group is None else settings_for_kafka(options)
    return settings, ControlLog(Cluster(settings.kafka), settings.names)


def read_policy(file: Path, settings: Settings) -> dict[str, object]:
    """Return the policy that a file says, as it is written in YAML by us. Raises ConfigError if it is not valid."""
    try:
        document = read_yaml(read_plain(file, LARGEST_FILE).decode())
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError([f"{file}: {fault.strerror if isinstance(fault, OSError) else 'is no text'}"]) from None
    values = document.value
    if document.faults:
        raise ConfigError([f"{file}: {fault}" for fault in document.faults])
    if not isinstance(values, dict):
        raise ConfigError([f"{file}: must be a mapping of the policy's keys; {{}} withdraws the policy"])
    if unknown := [str(key) for key in values if key not in KEYS]:
        raise ConfigError([f"{file}: {key}: {advice_for(key)}" for key in unknown])
    read = policy_values(overridden(settings, values, str(file)))
    return {key: read[key] for key in KEYS if key in values}


def read_to_change(log: ControlLog, *, replace: bool) -> ControlState:
    """Read the control log, whose policy is to be changed. Raises ContractError if a newer version wrote that."""
    state = log.read()
    if state.policies.unread is not None and not replace:
        raise ContractError(
            f"the group's policy cannot be read: {state.policies.unread.fault}. Set it with that version; "
            "--replace writes one of this version instead, without the values that it has"
        )
    return state


def policy_of(state: ControlState) -> Mapping[str, object]:
    """Return the values of the policy that instances follow."""
    record = state.policies.in_force
    return {} if record is None else record.policy


def governed(settings: Settings) -> InForce:
    """Return what is in force in the group.

    Raises ContractError if the policy topic is missing, BrokerError if Kafka does not answer.
    """
    from reconsume.sidecar.group_policy.control_log import ControlLog
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    return in_force(settings, ControlLog(Cluster(settings.kafka), settings.names).read())


def in_force(settings: Settings, state: ControlState | None, *, with_policy: bool = True) -> InForce:
    """Return what is in force by a control log, and print a warning for each record that instances skip."""
    from reconsume.sidecar.group_policy.agreement import group_settings

    current = group_settings(settings, state, wall(), with_policy=with_policy)
    if with_policy and state is not None:
        for entry in state.policies.entries:
            if entry.fault:
                talk(f"warning: the policy at offset {entry.offset} is passed over: {entry.fault}")
        for problem in current.refused:
            talk(f"warning: the group's policy cannot be applied: {problem}")
        for digest, problems in current.skipped.items():
            talk(f"warning: settings {digest} of instances cannot be applied: {'; '.join(problems)}")
    return current


def short_wait_remarks(old: Settings, new: Settings, state: ControlState) -> list[str]:
    """Return a warning for each wait of a live instance that ends before a delivery may, if the timeout grows.

    `old` and `new`: the settings with the present policy, and with the one to be set. `state`: what the control log
    says of its instances.
    """
    if new.longest_delivery <= old.longest_delivery:
        return []
    running = {name: beat.record for name, beat in state.beats.running(wall()).items()}
    return [f"warning: {sentence}" for sentence in short_waits_of_instances(new, running)]


def expect_levels(settings: Settings) -> None:
    """Raise ContractError, with the fix, if a level or queue topic that the settings need does not exist."""
    from reconsume.sidecar.kafka.admin.cluster import Cluster

    needed = levels_of(settings) | queues_of(settings)
    missing = needed - Cluster(settings.kafka).find_topics(needed).keys()
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
        if key not in KEYS:
            raise typer.BadParameter(f"{key}: {advice_for(key)}")
    if not pairs and not unset:
        raise typer.BadParameter("nothing to set: give KEY=VALUE, or --unset KEY")
    return pairs, frozenset(unset)


def advice_for(key: str) -> str:
    """Return what to write instead of a key that the policy does not have."""
    bare = next((known for known in KEYS if dotted(known) == key), None)
    return f"write {bare}" if bare is not None else f"the group can set {', '.join(KEYS)}"


def plan_of(old: Mapping[str, object], new: Mapping[str, object], before: Settings, after: Settings) -> list[Row]:
    """Return a row for each changed key: its value changes for this configuration, or it is set or unset for all
    instances. `old` and `new`: the policies."""
    values, later = policy_values(before), policy_values(after)
    changed = {key for key in KEYS if (key in old) != (key in new) or values[key] != later[key]}
    return [{"key": key, "old": values[key], "new": later[key]} for key in KEYS if key in changed]


def parked_text(after: Settings) -> str:
    """Return what becomes of the records that are parked when the group parks no more."""
    if after.queued:
        return "what is parked becomes a dead letter, unless it is settled before"
    settle = hint("settle --waiting --level parked")
    return f"what is parked stays so, and its key with it, until it is settled (`{settle}`)"


def rule_rows(settings: Settings) -> Iterator[Row]:
    """Yield a row for each rule by topic and reason, in their order: the first that matches decides."""
    for rule, written in zip(settings.retry.rules, policy_values(settings)["rules"], strict=True):  # type: ignore[call-overload]
        yield {"rule": rule.name, **{key: flow(value) for key, value in written.items() if key != "name"}}
