"""`config check`, `config show`, `config schema`: check and print the configuration before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from reconsume.sidecar.cli.terminal.arguments import tokens_in
from reconsume.sidecar.cli.terminal.exit_codes import DONE, FAILED
from reconsume.sidecar.cli.terminal.kafka_settings import loaded_groups
from reconsume.sidecar.cli.terminal.options import Options, command, take_common
from reconsume.sidecar.cli.terminal.output import Format, Row, talk, write
from reconsume.sidecar.cli.terminal.program import Group
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.open_files import highest_limit, needed_for
from reconsume.sidecar.printable import plural, printable
from reconsume.sidecar.settings import Settings, load_with_origins
from reconsume.sidecar.settings.addresses import is_loopback
from reconsume.sidecar.settings.checks import endless_retries, exposed, short_waits, without_effect
from reconsume.sidecar.settings.deliver import Deliver
from reconsume.sidecar.settings.load import Loaded
from reconsume.sidecar.settings.modes import ignored_settings
from reconsume.sidecar.settings.process_settings import load_groups
from reconsume.sidecar.settings.table import render_size

app = typer.Typer(cls=Group, help="Check and show the configuration.", no_args_is_help=True, rich_markup_mode=None)
take_common(app)


class Checked(NamedTuple):
    """What a check of one configuration found. `settings`: None if it cannot be used at all.

    `here`: warnings about this machine, such as a file that only the sidecar's pod has; `warnings`: all others.
    """

    settings: Settings | None
    faults: list[str]
    here: list[str]
    warnings: list[str]


@command(app, "check")
def check(
    options: Options,
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="The configurations; without any, that of -c.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Also end with 1 if there is a warning, unless it is about this machine alone."),
    ] = False,
) -> int:
    """Check configurations.

    Connects to nothing, and reports every fault at once. A Kafka client of each kind is made from the whole set of
    properties. Ends with 78 when something is wrong, in whichever file. A file that is not there is a warning here, as
    on a machine that has no secrets, and a fault when the sidecar starts. A setting that the mode of delivery ignores
    is a warning, too. Files that are arguments are checked one by one, those of several -c also as one sidecar has
    them.

    \b
    Examples:
      reconsume config check -c reconsume.yaml
      reconsume config check -c billing.yaml -c shipping.yaml
      reconsume config check --strict groups/*.yaml
    """
    if files and options.configs:
        raise typer.BadParameter("name the configurations as arguments, or with -c, and not both")
    results: list[tuple[Path | None, Checked]]
    if files:
        results = [(file, checked(options, file)) for file in files]
    elif options.has_several_configs:
        results = checked_together(options)
    else:
        results = [(None, checked(options, options.config))]
    is_of_many = len(results) > 1 or bool(files)
    faults, rows = list[str](), list[Row]()
    for file, result in results:
        whose = f"{printable(str(file))}: " if is_of_many else ""
        for sentence in (*result.here, *result.warnings):
            talk(f"warning: {whose}{sentence}")
        faults += [fault if fault.startswith(whose) else f"{whose}{fault}" for fault in result.faults]
        if result.settings is not None:
            group = result.settings.group or ", ".join(result.settings.ui.groups)
            row: Row = {"group": group, "topics": list(result.settings.topic_names)}
            rows.append({**({"file": str(file)} if is_of_many else {}), **row, "good": not result.faults})
        elif is_of_many:
            rows.append({"file": str(file), "group": None, "topics": None, "good": False})
    if is_of_many or not faults:
        options.output.rows(tuple(rows[0]), rows)
    if faults:
        raise ConfigError(faults)
    return FAILED if strict and any(result.warnings for _, result in results) else DONE


def checked(options: Options, file: Path | None) -> Checked:
    """Check one configuration on its own."""
    # The Kafka client is slow to import; help and schema need none.
    from reconsume.sidecar.kafka.client_check import single_faults

    try:
        loaded = load_with_origins(file, options.sets, judge=single_faults)
    except ConfigError as refused:
        return Checked(None, refused.problems, [], [])
    return checked_values(loaded)


def checked_together(options: Options) -> list[tuple[Path | None, Checked]]:
    """Check the configurations of several `-c`, which one process is to run. Raises ConfigError if it cannot."""
    from reconsume.sidecar.kafka.client_check import single_faults

    every = load_groups(options.configs, options.sets, judge=single_faults)
    results = [checked_values(loaded) for loaded in every]
    settings = [loaded.settings for loaded in every]
    results[0].warnings.extend(too_little_memory(settings))
    return list(zip(options.configs, results, strict=True))


def too_little_memory(groups: Sequence[Settings]) -> Iterator[str]:
    """Yield a sentence if a process with these groups needs more memory than the manifests give it."""
    from reconsume.sidecar.deploy.container import USUAL_MEMORY, memory_of_groups

    if (memory := memory_of_groups(groups)) > int(USUAL_MEMORY.removesuffix("Mi")):
        yield (
            f"{plural(len(groups), 'group')} in one process need a memory limit of {memory}Mi: set it in the manifest, "
            f"as `--memory-limit {memory}Mi` of inject does"
        )


def checked_values(loaded: Loaded) -> Checked:
    """Check settings: as Kafka's client takes them, and the files that they name."""
    from reconsume.sidecar.delivery.push.credentials import files_of
    from reconsume.sidecar.kafka.client_check import absent_files, client_faults, without_files

    settings = loaded.settings
    tokens = token_files(settings)
    absent = absent_files(settings.kafka)
    faults = list[str]()
    try:
        faults += client_faults(without_files(settings.kafka, absent))
    except ConfigError as unreadable:
        faults += unreadable.problems
    absent |= {name: file for name, file in (tokens | files_of(settings.deliver)).items() if not file.exists()}
    faults += [*token_faults(tokens, absent), *target_faults(settings.deliver), *service_faults(settings, absent)]
    here = [f"{name} = {file} is not there; where the sidecar runs it must be" for name, file in absent.items()]
    ignored = ignored_settings(settings, loaded.layers.origin)
    usual = (
        *exposed(settings),
        *without_effect(settings),
        *short_waits(settings),
        *endless_retries(settings),
        *unusual(settings),
    )
    return Checked(settings, faults, [*here, *too_few_files(settings)], [*ignored, *usual])


def too_few_files(settings: Settings) -> Iterator[str]:
    """Yield a sentence if a process may have fewer open files on this machine than the deliveries need."""
    deliver = settings.deliver
    most, needed = highest_limit(), needed_for(deliver.most_requests)
    if deliver.mode == "push" and most < needed:
        yield (
            f"deliver.concurrency = {deliver.concurrency} needs {plural(needed, 'open file')}, and a process may have "
            f"{most} here (`ulimit -Hn`): deliveries beyond them wait; raise the limit where the sidecar runs, or "
            "lower it"
        )


def unusual(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each value that is allowed and may not do what is hoped for."""
    from reconsume.sidecar.deploy.container import memory_limit

    deliver, listen = settings.deliver, settings.api.listen
    if listen.path is None and not is_loopback(listen.host) and not settings.api.hosts:
        yield "api.listen is outside loopback, and api.hosts names no host: calls by any other name get 421"
    usual = memory_limit(deliver.buffer_memory, deliver.most_requests)
    if (memory := memory_limit(deliver.buffer_memory, deliver.most_requests, deliver.max_answer)) > usual:
        yield (
            f"deliver.max_answer = {render_size(deliver.max_answer)} needs a memory limit of {memory}Mi: set it in the "
            f"manifest, as `--memory-limit {memory}Mi` of inject does"
        )


def token_files(settings: Settings) -> dict[str, Path]:
    """Return the files of tokens, by their settings."""
    named = {"api.token_file": settings.api.token_file, "operators.token_file": settings.operators.token_file}
    return {name: Path(file) for name, file in named.items() if file is not None}


def token_faults(files: Mapping[str, Path], absent: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each file of tokens that is there and cannot be used as a whole."""
    owners = dict[bytes, tuple[str, int, str]]()
    for name in [name for name in files if name not in absent]:
        tokens, fault = tokens_in(files[name])
        faults = [fault] if fault else []
        for number, token in enumerate(tokens, 1):
            other, first, called = owners.setdefault(token.secret, (name, number, token.name))
            if other != name:
                faults.append(f"its token number {number} is in {other} too, so it opens no operators' call")
            elif first != number:
                whose = f"called {called} and {token.name}" if called != token.name else "the same"
                faults.append(f"its tokens number {first} and {number} are one secret, {whose}: leave one of them out")
        yield from (f"{name} = {files[name]}: {one}" for one in faults)


def target_faults(deliver: Deliver) -> Iterator[str]:
    """Yield a sentence for each URL that `run` would refuse, such as an address of a cloud's metadata."""
    from reconsume.sidecar.delivery.push.target import parse_target

    for name, url in (("url", deliver.url), ("health_url", deliver.health_url)):
        try:
            if url is not None:
                parse_target(url, deliver.allow_remote)
        except ValueError as fault:
            yield f"deliver.{name}: {fault}"


def service_faults(settings: Settings, absent: Collection[str]) -> list[str]:
    """Return a sentence for each file of `deliver` that is there and cannot be used.

    A certificate is not looked at without its key.
    """
    from reconsume.sidecar.delivery.push.credentials import TLS, files_of, read_credentials

    secure = not any(name in absent for name in TLS)
    unread = absent if secure else {*absent, *TLS}
    try:
        read_credentials(
            {name: file for name, file in files_of(settings.deliver).items() if name not in unread}, secure=secure
        )
    except ConfigError as fault:
        return fault.problems
    return []


@command(app, "show")
def show(options: Options) -> None:
    """Show every setting in force.

    With where each value came from; secrets are masked. With several -c, of each group.

    \b
    Example:
      RECONSUME_RETRY__MAX_RECONSUME_TIMES=3 reconsume config show -o table
    """
    from reconsume.sidecar.settings.load import effective

    every, rows = loaded_groups(options), list[Row]()
    whose = ("group",) if len(every) > 1 else ()
    for loaded in every:
        named = dict.fromkeys(whose, loaded.settings.group)
        rows += [{**named, "key": row.key, "value": row.value, "origin": row.origin} for row in effective(loaded)]
    options.output.rows((*whose, "key", "value", "origin"), rows)


@command(app, "schema")
def schema(
    options: Options,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference page instead.")] = False,
) -> None:
    """Print the JSON Schema of the file.

    For editors and for CI. With -o table, tsv or jsonl: one row a setting.

    \b
    Examples:
      reconsume config schema > config.schema.json
      reconsume config schema --markdown > configuration.md
    """

    from reconsume.sidecar.settings.reference import markdown_page, reference, schema_text

    if markdown:
        options.expect_no_format("without --markdown there are rows")
        write(markdown_page().rstrip("\n"))
    elif options.format in (None, Format.JSON):
        write(schema_text())
    else:
        options.output.rows(("key", "allowed", "default", "meaning"), reference())
