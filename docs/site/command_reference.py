"""Print the page of the whole command line, docs/reference.md. It is made from the command tree, so it cannot differ.

`make reference` writes the page. A test fails when it is not current.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer

from reconsume.sidecar.cli import app
from reconsume.sidecar.cli.terminal.exit_codes import MEANINGS
from reconsume.sidecar.cli.terminal.options import COMMON

Tree = Any
"""A command or a group as typer builds it. Its class belongs to typer and differs between typer's versions."""
PROGRAM = "reconsume"
LIMITS = re.compile(r"(?:^|\s+)\[([^\[\]]*)\]$")
"""The end of an option's help, as typer writes it: `[required]`, `[default: 50; x>=1]`."""
RANGE = re.compile(r"\bx[<>]|[<>]=?x\b")
EXAMPLES = re.compile(r"\x08\n(Examples?):\n((?:  .*\n?)+)")
EVERYWHERE = ("--help", "--install-completion", "--show-completion")

ENVIRONMENT = (
    ("RECONSUME_<KEY>", "A setting: RECONSUME_RETRY__MAX_RECONSUME_TIMES is retry.max_reconsume_times."),
    ("RECONSUME_CACHE", "Where the embedded broker and Spark's Kafka connector are kept."),
    ("RECONSUME_MAVEN_MIRROR", "Where they are downloaded from, instead of Maven Central."),
    ("XDG_CACHE_HOME", "As RECONSUME_CACHE, with reconsume/ below it; ~/.cache by default."),
    ("XDG_STATE_HOME", "Where `ui` keeps its files, in reconsume/; ~/.local/state by default."),
    ("JAVA_HOME", "The Java of `dev`, `demo` and `view`; else the first one on PATH."),
    ("PATH", "Where java is looked for."),
    ("POD_NAME, POD_NAMESPACE", "The instance's name; else host and API port."),
    ("NO_COLOR", "No colours, as --no-color."),
    ("COLUMNS", "The width of tables and of help."),
)
INTRODUCTION = """\
# Command line

Made from the commands by `make reference`; a test fails when it is not current.

Data goes to stdout, and talk to stderr. What a command prints as rows is a table on a terminal and JSON Lines in a
pipe, or what `-o` says. A command that changes something shows its plan and asks; `--yes` agrees where there is no
terminal, and `--dry-run` changes nothing. An error is one sentence with its cause and what repairs it; with `-o json`
or `-o jsonl` it is one JSON object on one line of stderr, with `title`, `detail` and `exit`. Ctrl-C ends every command,
with nothing half done. In a narrow table an id is never cut: other columns are folded or left out; `--wide` has them.

`reconsume --install-completion` lets the shell complete commands and options (bash, zsh, fish, PowerShell).
"""


class ParameterRow(NamedTuple):
    """An option or argument as help shows it."""

    option: str
    default: str
    meaning: str


def page(tree: Tree) -> str:
    """Return the page in Markdown."""
    contexts = list(walk(tree))
    sections = [INTRODUCTION, "## Options of every command\n\nBefore, between or after the words of a command.\n"]
    sections += [table(own(contexts[0])), *(section(context) for context in contexts[1:])]
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items())
    sections.append(f"## Exit codes\n\n| code | meaning |\n|---|---|\n{codes}")
    variables = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in ENVIRONMENT)
    sections.append(f"## Environment\n\n| variable | meaning |\n|---|---|\n{variables}")
    return "\n".join(sections)


def walk(tree: Tree, above: typer.Context | None = None) -> Iterator[typer.Context]:
    """Yield the command and every one below it, in the order of help, without hidden ones."""
    context = typer.Context(tree, parent=above, info_name=PROGRAM if above is None else tree.name)
    yield context
    for name in tree.list_commands(context) if hasattr(tree, "list_commands") else ():
        below = tree.get_command(context, name)
        if not below.hidden:
            yield from walk(below, context)


def own(context: typer.Context) -> list[ParameterRow]:
    """Return a command's options without the common ones; the program itself has those."""
    common = {} if context.parent is None else {param.name: param.help for param in context.find_root().command.params}
    shared = {name for name in COMMON if name in common}  # `init` has another --group
    parameters = [
        param
        for param in context.command.params
        if param.name not in shared or common[param.name] != getattr(param, "help", None)
    ]
    records = [record for param in parameters if (record := param.get_help_record(context)) is not None]
    return [given_of(*record) for record in records if not any(word in record[0] for word in EVERYWHERE)]


def given_of(option: str, text: str) -> ParameterRow:
    """Build an option from its two columns in help."""
    limits, meaning = LIMITS.search(text), LIMITS.sub("", text)
    facts = [] if limits is None else limits[1].split("; ")
    default = "".join(fact.removeprefix("default: ") for fact in facts if not RANGE.search(fact))
    return ParameterRow(option, default, " ".join([meaning, *(f"({fact})" for fact in facts if RANGE.search(fact))]))


def section(context: typer.Context) -> str:
    """Return the section of one command: what it does, its usage, examples and options. A group has only its
    sentence."""
    text, (heading, *pieces) = inspect.cleandoc(context.command.help or ""), heading_of(context)
    paragraphs = [heading, EXAMPLES.sub("", text).strip() + "\n"]
    if hasattr(context.command, "list_commands"):
        return "\n".join(paragraphs)
    paragraphs.append(fenced([context.command_path, *pieces]))
    if examples := EXAMPLES.search(text):
        paragraphs += [f"{examples[1]}:\n", f"```sh\n{inspect.cleandoc(examples[2])}\n```\n"]
    return "\n".join([*paragraphs, table(own(context))] if own(context) else paragraphs)


def heading_of(context: typer.Context) -> list[str]:
    """Return the heading, then the words of usage after the command's name."""
    level = "##" if context.parent is not None and context.parent.parent is None else "###"
    return [f"{level} {context.command_path}\n", *context.command.collect_usage_pieces(context)]


def fenced(words: list[str]) -> str:
    """Return a line of usage as a code block."""
    return f"```text\n{' '.join(words)}\n```\n"


def table(parameters: list[ParameterRow]) -> str:
    """Return options as a Markdown table."""
    lines = [f"| `{one.option}` | {one.default} | {one.meaning} |".replace("||", "\\|\\|") for one in parameters]
    cells = [re.sub(r"(?<=\w)\|(?=\w)", r"\\|", line) for line in lines]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *cells, ""])


if __name__ == "__main__":
    sys.stdout.write(page(typer.main.get_command(app)))
