"""The options that every command has, before or after its name, and the one way to register a command.

A command is a function of `Options` and its own parameters. It returns an exit code, or None for 0. `exit_codes` turns
an exception from it into a sentence and a code.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from reconsume.sidecar.cli.terminal.exit_codes import exit_code
from reconsume.sidecar.cli.terminal.output import Format, Output
from reconsume.sidecar.cli.terminal.program import Command
from reconsume.sidecar.hints import use_given
from reconsume.sidecar.settings.load import masked_set, secret_of

P = ParamSpec("P")
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True, slots=True)
class Options:
    """The common options as given; None and empty mean not given. typer gets them from here."""

    configs: Annotated[
        list[Path],
        typer.Option(
            "-c",
            "--config",
            metavar="FILE",
            help="The configuration. Default: reconsume.yaml, or /etc/reconsume/reconsume.yaml where there is none; "
            "for dev up, that of its sample service. Several mean several groups.",
        ),
    ] = field(default_factory=list)
    group: Annotated[
        str | None,
        typer.Option(
            "--group", metavar="NAME", help="Which group it is about, of several -c, or of ui.groups in the file."
        ),
    ] = None
    sets: Annotated[
        list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated.")
    ] = field(default_factory=list)
    format: Annotated[
        Format | None,
        typer.Option("-o", "--output", help="How data is printed: table on a terminal, else jsonl."),
    ] = None
    wide: Annotated[bool, typer.Option("--wide", help="Tables with all columns, wider than the terminal.")] = False
    utc: Annotated[bool, typer.Option("--utc", help="Times in tables in UTC, not in the zone of this machine.")] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False

    def then(self, later: Options) -> Options:
        """Return these options and `later`, which stand nearer to the command. Every `-c` and every `--set` counts;
        of two for one setting the later one wins.

        Raises BadParameter if another option that takes a value is in both.
        """
        changes = {one.name: value for one in fields(later) if (value := getattr(later, one.name))}
        for name, value in changes.items():
            if name not in LISTS and not isinstance(value, bool) and (first := getattr(self, name)) is not None:
                option = OPTION_NAMES[name]
                raise typer.BadParameter(f"{option} is given more than once: {first} and {value}; it takes one value")
        return replace(self, **changes | {name: [*getattr(self, name), *getattr(later, name)] for name in LISTS})

    @property
    def config(self) -> Path | None:
        """The one file; None without `-c`. Raises BadParameter if there are several."""
        if len(self.configs) > 1:
            raise typer.BadParameter(f"-c names {len(self.configs)} files, and this takes one")
        return self.configs[0] if self.configs else None

    @property
    def has_several_configs(self) -> bool:
        """Whether there are several `-c`, and so several groups."""
        return len(self.configs) > 1

    @property
    def discovered_group(self) -> str | None:
        """The group of `--group` whose settings come from Kafka; None if a file has them (several `-c`)."""
        return None if self.has_several_configs else self.group

    @property
    def output(self) -> Output:
        """The printer of the command's data."""
        return Output(self.format, color=not self.no_color, wide=self.wide, utc=self.utc)

    def expect_no_format(self, instead: str) -> None:
        """Raise BadParameter if `-o` is given to a command that prints no rows: its output is for another program."""
        if self.format is not None:
            raise typer.BadParameter(f"this prints no rows, so leave out -o; {instead}")


LISTS = ("configs", "sets")
"""The options that may be repeated."""
OPTION_NAMES = {"group": "--group", "format": "--output"}
"""What users call the options that take one value."""
COMMON = {
    name: parameter.replace(kind=KEYWORD_ONLY, default=None if name in LISTS else parameter.default)
    for name, parameter in inspect.signature(Options, eval_str=True).parameters.items()
}


def common_options(values: dict[str, Any], names: Collection[str]) -> Options:
    """Take the common options of these names out of the values of a command line. Raises BadParameter if one holds a
    secret."""
    common = {name: value for name in names if (value := values.pop(name)) is not None}
    for text in common.get("sets", ()):
        if fault := secret_of(text):
            raise typer.BadParameter(fault)
    return Options(**common)


Texts = Mapping[str, tuple[str, str]]
"""Options that are plain texts, by the name of the parameter: what help calls the value, and what it says."""


def with_common(
    function: Callable[..., Any],
    call: Callable[[typer.Context, Options, dict[str, Any]], None],
    texts: Texts | None = None,
) -> Callable[..., None]:
    """Build a function for typer: the parameters of `function` after its first one, and the common options.

    Between those that must be given and the others are `texts`, of which the function gets the values by `**named`.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    common = {name: one for name, one in COMMON.items() if name not in (texts or {})}  # init has a --group of its own
    required = [parameter for parameter in own if parameter.default is parameter.empty]
    parameters = [
        inspect.Parameter("context", KEYWORD_ONLY, annotation=typer.Context),
        *(parameter for parameter in required if parameter.kind is not parameter.VAR_KEYWORD),
        *(text_parameter(name, *text) for name, text in (texts or {}).items()),
        *(parameter for parameter in own if parameter not in required),
        *common.values(),
    ]

    @functools.wraps(function)
    def entry(context: typer.Context, **values: Any) -> None:
        above = context.obj if isinstance(context.obj, Options) else Options()  # those before the command's name
        call(context, above.then(common_options(values, common)), values)

    del entry.__wrapped__  # typer must see the parameters set below, not the function's
    keyword_only = [parameter.replace(kind=KEYWORD_ONLY) for parameter in parameters]
    entry.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    entry.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return entry


def text_parameter(name: str, metavar: str, text: str) -> inspect.Parameter:
    """Return the parameter of an option that is a plain text."""
    option = typer.Option(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    return inspect.Parameter(name, KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])


def command(
    app: typer.Typer, name: str, *, hidden: bool = False, panel: str | None = None, texts: Texts | None = None
) -> Callable[[Callable[Concatenate[Options, P], int | None]], Callable[Concatenate[Options, P], int | None]]:
    """Register a function as a command of `app`. `panel`: the heading under which help lists it. `texts`: more
    options of it."""

    def register(
        function: Callable[Concatenate[Options, P], int | None],
    ) -> Callable[Concatenate[Options, P], int | None]:
        def call(context: typer.Context, options: Options, own: dict[str, Any]) -> None:
            as_json = options.format in (Format.JSON, Format.JSONL)
            words = context.command_path.split()  # `reconsume dlq show`
            use_given(options.configs, map(masked_set, options.sets), options.group)
            try:
                work = functools.partial(typing.cast(Any, function), options, **own)
                code = exit_code(work, debug=options.debug, as_json=as_json, command=words[:2][-1])
            finally:
                use_given()
            if code != 0:
                raise typer.Exit(code)  # raised, not returned: a returned typer.Exit would end with 0

        app.command(name, cls=Command, hidden=hidden, rich_help_panel=panel)(with_common(function, call, texts))
        return function

    return register


def take_common(app: typer.Typer, own: Callable[..., None] | None = None) -> None:
    """Make a command group accept the common options, and those of `own`, between its name and the command's."""

    def call(context: typer.Context, options: Options, _own: dict[str, Any]) -> None:
        context.obj = options

    app.callback()(with_common(own or (lambda _options: None), call))
