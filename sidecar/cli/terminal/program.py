"""The root of the command line, and its groups: help with the commands in panels, and wrong usage as JSON if asked.

typer draws panels only with rich, whose help differs from terminal to terminal and takes 100 ms more.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from reconsume.sidecar.cli.terminal.exit_codes import WRONG_USAGE, json_error
from reconsume.sidecar.cli.terminal.output import Format

PAGES = {
    "acls": "Security",
    "config": "Configuration",
    "dev": "The demo",
    "dlq": "Dead letters",
    "policy": "Running it",
    "retries": "Running it",
    "topics": "What it writes to Kafka",
    "view": "Spark: the retries of a group as DataFrames",
}
"""The title of the page on each group of commands; any other help names the reference. An installed package has no
files of pages, so no text names one by its path."""
OTHER = "Commands"


class GivenOnce:
    """A part of a command: an option that takes one value is refused if it is given twice, with both values."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the words of this command. Raises UsageError for an option that is given twice."""
        command: Any = self
        if not ctx.resilient_parsing:
            order = command.make_parser(ctx).parse_args(args=list(args))[2]
            for option in dict.fromkeys(order):
                takes_one = not any(getattr(option, name, True) for name in ("multiple", "is_flag", "count"))
                if takes_one and order.count(option) > 1:
                    values = " and ".join(values_given(option.opts, args))
                    ctx.fail(f"{option.opts[-1]} is given more than once: {values}; it takes one value")
        return super().parse_args(ctx, args)  # type: ignore[misc]  # of the class that it is a part of


def values_given(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the values that an option of these names has among the words of a command line."""
    values = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--":
            break
        if word in names:
            values.append(following)
        for name in names:
            joined = f"{name}=" if name.startswith("--") else name
            if word.startswith(joined) and word != name:
                values.append(word[len(joined) :])
    return values


class Command(GivenOnce, TyperCommand):
    """A command of the program."""


class Group(GivenOnce, TyperGroup):
    """A group of commands. Help lists the commands by their panels, in the order of the first one of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each panel under its name."""
        panels: dict[str, list[tuple[str, Any]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panels.setdefault(getattr(command, "rich_help_panel", None) or OTHER, []).append((name, command))
        longest = max(len(name) for commands in panels.values() for name, _ in commands)
        limit = formatter.width - 6 - longest
        for panel, commands in panels.items():
            with formatter.section(panel):
                rows = [(name.ljust(longest), command.get_short_help_str(limit)) for name, command in commands]
                formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write which page of the documentation is about these commands."""
        formatter.write_paragraph()
        formatter.write_text(f"Documentation: the page '{PAGES.get(ctx.info_name or '', 'Command line')}'")


class Program(Group):
    """The root. With `-o json` or `-o jsonl` wrong usage is one line of JSON on stderr, as all errors are.

    What is missing is named with an example of the command.
    """

    words: Sequence[str] = ()
    """All that was typed behind the program's name."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the options of the root."""
        self.words = tuple(args)
        with usage_told(self.words):
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with usage_told(self.words):
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; whoever looks for the version is told where it is."""
        if args[:1] == ["version"]:
            ctx.fail("there is no command 'version': reconsume --version prints it")
        return super().resolve_command(ctx, args)


@contextmanager
def usage_told(words: Sequence[str]) -> Iterator[None]:
    """Improve the error of wrong usage, and print it as JSON if the words ask for that. Raises Exit then."""
    try:
        yield
    except Exception as error:
        improve_usage_error(error)
        if not hasattr(error, "format_message") or not asks_json(words):
            raise
        json_error("wrong usage", error.format_message(), WRONG_USAGE)
        raise typer.Exit(WRONG_USAGE) from None


def improve_usage_error(wrong: Any) -> None:
    """Improve an error of wrong usage: with an example, better suggestions, and a sentence without pydantic's words."""
    match type(wrong).__name__:  # the classes are typer's own, and differ between its versions
        case "MissingParameter":
            if example := example_of(wrong.ctx.command.help or ""):
                wrong.message = f"For example: {example}"
        case "NoSuchOption":  # compared without their hyphens: with them `--yes` resembles `--set`
            known = {one.lstrip("-"): one for one in wrong.possibilities or ()}
            similar = difflib.get_close_matches(wrong.option_name.lstrip("-"), known)
            wrong.possibilities = [known[one] for one in similar]
        case "BadParameter":  # newer versions of typer show the sentence of pydantic, which names no option
            text = wrong.message.removeprefix("Value error, ").partition(", unable to parse")[0]
            wrong.message = text.replace("Input should be", "must be")


def example_of(text: str) -> str:
    """Return the first example in a command's help; empty if it has none."""
    lines = (line.strip() for line in text.partition("Examples:")[2].splitlines())
    return next(filter(None, lines), "").partition("  #")[0]


def asks_json(words: Sequence[str]) -> bool:
    """Return whether the words of a command line ask for JSON, even if they cannot be parsed. The last `-o` counts."""
    text = "\n".join(("", *words, "")).partition("\n--\n")[0]
    chosen = re.findall(r"^(?:--output[=\n]|-o\n?)(.*)$", text, re.MULTILINE)
    return bool(chosen) and chosen[-1] in (Format.JSON, Format.JSONL)
