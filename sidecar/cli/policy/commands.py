"""`policy show`, `policy set`: the retry policy of all instances of the group, changed while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.explain import parks_in
from reconsume.sidecar.cli.policy.guards import expect_levels, expect_readable, fitting, warn_of_short_waits
from reconsume.sidecar.cli.policy.plan import origin_of, parked_text, plan_of, read_pairs, rule_rows
from reconsume.sidecar.cli.terminal.arguments import author
from reconsume.sidecar.cli.terminal.confirm import Yes, ask
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Format, clock, talk
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.clock import wall
from reconsume.sidecar.errors import ContractError
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import plural
from reconsume.sidecar.settings.group_policy import (
    KEYS,
    differences,
    flow,
    overridden,
    policy_values,
    read_assignments,
)
from reconsume.sidecar.settings.load import Loaded, load_with_origins
from reconsume.sidecar.settings.model import Settings
from reconsume.topics.policy_record import PolicyRecord

if TYPE_CHECKING:
    from reconsume.sidecar.group_policy.operations import PolicyStore
    from reconsume.sidecar.group_policy.state import Policies

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
    talk("no policy is set for the group" if record is None else f"set by {record.who} at {clock(record.at)}")
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
    yes: Yes = False,
    dry_run: DryRun = False,
    replace: Replace = False,
) -> int | None:
    """Set values for the whole group.

    All instances follow within seconds, without a restart; records that wait keep their due time. A plan is shown
    first. Level topics that the values need must exist.

    \b
    Examples:
      reconsume policy set max_reconsume_times=3 timeout=30s
      reconsume policy set 'ladder=[10s, 1m, 10m]' --yes
      reconsume policy set 'rules.busy={reasons: [http-409], ladder: [1m, 5m]}'
      reconsume policy set rules.busy=null
      reconsume policy set --unset ladder
    """
    pairs, dropped = read_pairs(assignments or [], unset or [])
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
        offset = store.write(fitting(PolicyRecord(new, by, wall(), was)), state)
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
