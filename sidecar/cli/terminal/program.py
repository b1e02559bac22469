"""The root of the command line, and its groups: help with the commands in panels, and wrong usage as JSON if asked.

typer draws panels only with rich, whose help differs from terminal to terminal and takes 100 ms more.
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

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
    "view": "The group-wide view: Spark",
}
"""The title of the page on each group of commands; any other help names the reference. An installed package has no
files of pages, so no text names one by its path."""
OTHER = "Commands"


class Group(TyperGroup):
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

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Its class is typer's own, and differs between its versions.
            if type(error).__name__ == "MissingParameter":
                _add_example(error)
            elif type(error).__name__ == "NoSuchOption":
                _keep_similar(error)
            _drop_words_of_pydantic(error)
            raise

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the options of the root, as typer does."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as error:
            _drop_words_of_pydantic(error)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; whoever looks for the version is told where it is."""
        if args[:1] == ["version"]:
            ctx.fail("there is no command 'version': reconsume --version prints it")
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line, as typer does."""
        words = list(sys.argv[1:] if args is None else args)
        run = functools.partial(super().main, args, prog_name, complete_var)
        if not standalone_mode or not asks_json(words):
            return run(standalone_mode, windows_expand_args, **extra)
        try:
            code = run(False, windows_expand_args, **extra)
        except typer.Abort:
            json_error("aborted", "there was no answer", 1)
            sys.exit(1)
        except Exception as error:
            if not hasattr(error, "format_message"):  # the class is typer's own, and differs between its versions
                raise
            json_error("wrong usage", error.format_message(), WRONG_USAGE)
            sys.exit(WRONG_USAGE)
        sys.exit(code or 0)


def _keep_similar(error: Any) -> None:
    """Leave the suggestions that resemble the option without its hyphens: with them `--yes` resembles `--set`."""
    name, known = error.option_name.lstrip("-"), error.possibilities or []
    similar = difflib.get_close_matches(name, [one.lstrip("-") for one in known])
    error.possibilities = [one for one in known if one.lstrip("-") in similar]


def _drop_words_of_pydantic(error: Any) -> None:
    """Reword an invalid value: newer versions of typer show the sentence of pydantic, which names no option."""
    if type(error).__name__ == "BadParameter":
        text = error.message.removeprefix("Value error, ").partition(", unable to parse")[0]
        error.message = text.replace("Input should be", "must be")


def _add_example(error: Any) -> None:
    """Have the error of a missing parameter name an example of its command, where the help has one."""
    if example := example_of(error.ctx.command.help or ""):
        error.message = f"For example: {example}"


def example_of(text: str) -> str:
    """Return the first example in a command's help; empty if it has none."""
    lines = (line.strip() for line in text.partition("Examples:")[2].splitlines())
    return next(filter(None, lines), "").partition("  #")[0]


def asks_json(words: Sequence[str]) -> bool:
    """Return whether the words of a command line ask for JSON, also if they cannot be parsed."""
    chosen = list(formats(words))
    return bool(chosen) and chosen[-1] in (Format.JSON, Format.JSONL)


def formats(words: Sequence[str]) -> Iterator[str]:
    """Yield what stands behind each `-o` and `--output`."""
    for number, word in enumerate(words):
        if word == "--":
            return
        if word in ("-o", "--output"):
            yield words[number + 1] if number + 1 < len(words) else ""
        elif word.startswith("--output="):
            yield word.removeprefix("--output=")
        elif word.startswith("-o") and not word.startswith("--"):
            yield word[2:]
