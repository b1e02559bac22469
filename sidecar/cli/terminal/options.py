"""The options that every command has, before or after its name, and the one way to register a command.

A command is a function of `Options` and its own parameters. It returns an exit code, or None for 0. `exit_codes` turns
an exception from it into a sentence and a code.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from reconsume.sidecar.cli.terminal.exit_codes import exit_code
from reconsume.sidecar.cli.terminal.output import Format, Output
from reconsume.sidecar.hints import use_file
from reconsume.sidecar.settings.load import secret_of

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Options:
    """The common options as given; None and empty mean not given."""

    config: Path | None = None
    sets: tuple[str, ...] = ()
    format: Format | None = None
    no_color: bool = False
    debug: bool = False
    wide: bool = False
    utc: bool = False

    def then(self, later: Options) -> Options:
        """Return these options with `later` on top, which stand nearer to the command. Every `--set` counts; later
        ones win."""
        return Options(
            config=self.config if later.config is None else later.config,
            sets=self.sets + later.sets,
            format=self.format if later.format is None else later.format,
            no_color=self.no_color or later.no_color,
            debug=self.debug or later.debug,
            wide=self.wide or later.wide,
            utc=self.utc or later.utc,
        )

    @property
    def output(self) -> Output:
        """The printer of the command's data."""
        return Output(self.format, color=not self.no_color, wide=self.wide, utc=self.utc)

    def expect_no_format(self, instead: str) -> None:
        """Raise BadParameter if `-o` is given to a command that prints no rows: its output is for another program."""
        if self.format is not None:
            raise typer.BadParameter(f"this prints no rows, so leave out -o; {instead}")


def common(
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", metavar="FILE", help="The configuration; reconsume.yaml where it is not given."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated."),
    ] = None,
    output: Annotated[
        Format | None,
        typer.Option("-o", "--output", help="How data is printed: table on a terminal, else jsonl."),
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Tables with all columns, wider than the terminal.")] = False,
    utc: Annotated[
        bool, typer.Option("--utc", help="Times in tables in UTC, not in the zone of this machine.")
    ] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours; NO_COLOR does the same.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> Options:
    """The common options from what the command line gave. Raises BadParameter if that has a secret."""
    for text in sets or ():
        if fault := secret_of(text):
            raise typer.BadParameter(fault)
    return Options(config, tuple(sets or ()), output, no_color, debug, wide, utc)


COMMON = {
    name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for name, parameter in inspect.signature(common, eval_str=True).parameters.items()
}


def with_common(
    function: Callable[..., Any], call: Callable[[typer.Context, Options, dict[str, Any]], None]
) -> Callable[..., None]:
    """Build a function for typer: the parameters of `function` after its first one, then the common options."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    @functools.wraps(function)
    def entry(context: typer.Context, **values: Any) -> None:
        call(context, common(**{name: values.pop(name) for name in COMMON}), values)

    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    parameters = [context, *keyword_only, *COMMON.values()]
    del entry.__wrapped__  # typer must see the parameters set below, not the function's
    entry.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    entry.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return entry


def command(
    app: typer.Typer, name: str, *, hidden: bool = False, panel: str | None = None
) -> Callable[[Callable[Concatenate[Options, P], int | None]], Callable[Concatenate[Options, P], int | None]]:
    """Register a function as a command of `app`. `panel`: the heading under which help lists it."""

    def register(
        function: Callable[Concatenate[Options, P], int | None],
    ) -> Callable[Concatenate[Options, P], int | None]:
        def call(context: typer.Context, here: Options, own: dict[str, Any]) -> None:
            options = above(context).then(here)
            as_json = options.format in (Format.JSON, Format.JSONL)
            use_file(options.config)
            try:
                work = functools.partial(typing.cast(Any, function), options, **own)
                code = exit_code(work, debug=options.debug, as_json=as_json, command=first_word(context))
            finally:
                use_file(None)
            if code != 0:
                raise typer.Exit(code)  # raised, not returned: a returned typer.Exit would end with 0

        app.command(name, hidden=hidden, rich_help_panel=panel)(with_common(function, call))
        return function

    return register


def first_word(context: typer.Context) -> str:
    """Return the first word of the command: `dlq` of `reconsume dlq show`, whatever the program is called."""
    here: Any = context  # a parent is of click's own class, which typer does not export
    while here.parent is not None and here.parent.parent is not None:
        here = here.parent
    return here.info_name or ""


def take_common(app: typer.Typer, own: Callable[..., None] | None = None) -> None:
    """Make a command group accept the common options, and those of `own`, between its name and the command's."""

    def call(context: typer.Context, here: Options, _own: dict[str, Any]) -> None:
        context.obj = above(context).then(here)

    app.callback()(with_common(own or only_common, call))


def only_common(_options: Options) -> None:
    """No options but the common ones."""


def above(context: typer.Context) -> Options:
    """Return the options given before the command's name."""
    return context.obj if isinstance(context.obj, Options) else Options()
