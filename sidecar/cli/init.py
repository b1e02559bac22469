"""`init`: write the first files for a service, from questions or from options."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.init_steps import COMPOSE, next_commands
from reconsume.sidecar.cli.inject import Group, Mode, Servers, Topics, Url, replace
from reconsume.sidecar.cli.terminal.confirm import question
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import talk, write
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings.load import DEFAULT_FILE, load

if TYPE_CHECKING:
    from reconsume.sidecar.deploy.starter.configuration import Answers

WRITTEN, KEPT = "written: an operator's token", "is there, and stays as it is"
LIKELY = {"servers": "localhost:9092", "mode": "push", "url": "http://127.0.0.1:8080/events"}
KEEP = "; without --group and the other values a configuration that is there is taken as it is"
QUESTIONS = {
    "group": "The service's consumer group",
    "topics": "The topics that it consumes, with a comma between them",
    "servers": "The brokers, as host:port",
    "mode": "How it gets records: push (by HTTP requests), pull (it asks), or relay (it reads Kafka itself)",
    "url": "The service's address",
}
NAMES = {
    "group": "--group GROUP",
    "topics": "--topics TOPIC,…",
    "servers": "--bootstrap-servers HOST:PORT",
    "url": "--url URL, or --mode pull or relay",
}

Compose = Annotated[bool, typer.Option("--compose", help=f"Write {COMPOSE} too: Kafka, the sidecar and a service.")]
Kubernetes = Annotated[
    Path | None, typer.Option("--kubernetes", metavar="DIR", help="Write manifests of a service and its sidecar there.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that are there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the files, and write nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Ask nothing: name the options that are missing, and write nothing.")]


def init(
    options: Options,
    group: Group = None,
    topics: Topics = None,
    bootstrap_servers: Servers = None,
    mode: Mode = None,
    url: Url = None,
    compose: Compose = False,
    kubernetes: Kubernetes = None,
    force: Force = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Write the first reconsume.yaml.

    Asks for what no option gives, if there is a terminal. Each value is checked as a sidecar checks it, and each line
    of the file is explained in it. -c says where the file goes; a file that is there stays, unless --force is given.
    With --compose or --kubernetes and none of the values, a configuration that is there is taken as it is, and only
    the files around it are written. Beside it goes a file with an operator's token, for its owner alone, and a line of
    .gitignore. At the end it prints the next commands.

    \b
    Examples:
      reconsume init
      reconsume init --group billing --topics orders --bootstrap-servers kafka:9092 --url http://127.0.0.1:8080/events
      reconsume init --group billing --topics orders --bootstrap-servers localhost:9092 --mode pull --compose --dry-run
      reconsume init --kubernetes k8s
    """
    from reconsume.sidecar.deploy.starter.configuration import answers_in, configuration

    options.expect_no_format("the files are printed as they are")
    if options.sets:
        raise typer.BadParameter("--set changes a configuration that is there, and init writes a new one")
    path = options.config or DEFAULT_FILE
    said = {"group": group, "topics": topics, "servers": bootstrap_servers, "mode": mode, "url": url}
    values = {name: text for name, text in said.items() if text is not None}
    around = compose or kubernetes is not None
    kept = around and not values and path.exists()
    answers = answers_in(load(path, (), {})) if kept else complete(values, may_ask=not yes and sys.stdin.isatty())
    configured = path.read_text("utf-8") if kept else configuration(answers)
    texts = files(answers, path, configured, compose=compose, kubernetes=kubernetes)
    if kept:
        talk(f"{printable(str(path))}: is there, and is taken as it is")
        del texts[path]
    if dry_run:
        print_files(texts)
        return
    write_files(texts, force=force, hint=KEEP if around and path in texts else "")
    write_tokens(path.parent)
    next_commands(answers.servers, path, compose=compose, kubernetes=kubernetes)


def write_tokens(folder: Path) -> None:
    """Write the file with an operator's token, unless it is there, and keep it out of git. Raises ConfigError."""
    from reconsume.sidecar.deploy.starter.token import TOKENS, ignore_token, write_token

    name = printable(str(folder / TOKENS))
    try:
        talk(f"{name}: {WRITTEN if write_token(folder) else KEPT}")
        if ignore_token(folder):
            talk(f"{printable(str(folder / '.gitignore'))}: names it, so that git ignores it")
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "its text is not UTF-8"
        raise ConfigError([f"{name}, or .gitignore there: cannot be written: {why}"]) from None


def complete(values: dict[str, str], *, may_ask: bool) -> Answers:
    """Return the answers: those that options give, and the others from questions.

    Raises ConfigError with every wrong value, and BadParameter if one is missing and may not be asked for.
    """
    from reconsume.sidecar.deploy.starter.configuration import faults_of

    if "url" in values:
        values = {"mode": "push", **values}
    if wrong := faults_of(answers_of(values), partly=True):
        raise ConfigError(wrong)
    missing = [name for name in ("group", "topics", "servers", "mode") if name not in values]
    if values.get("mode", "push") == "push" and "url" not in values:
        missing.append("url")
    if missing and not may_ask:
        lacking = dict.fromkeys(NAMES.get("url" if name == "mode" else name, name) for name in missing)
        why = "there is no terminal to ask on" if not sys.stdin.isatty() else "with --yes nothing is asked"
        raise typer.BadParameter(f"{why}. These are missing:\n" + "\n".join(f"  {option}" for option in lacking))
    for name in missing:
        if name != "url" or values["mode"] == "push":
            values = ask_for(name, values)
    if wrong := faults_of(answers_of(values)):
        raise ConfigError(wrong)
    return answers_of(values)


def ask_for(name: str, values: dict[str, str]) -> dict[str, str]:
    """Return the texts with the answer to one question. A wrong answer is explained, and the question asked again."""
    from reconsume.sidecar.deploy.starter.configuration import faults_of

    while True:
        text = question(QUESTIONS[name], LIKELY.get(name))
        wrong = faults_of(answers_of({**values, name: text}), partly=True)
        if text.strip(" ,") and not wrong:
            return {**values, name: text}
        talk(wrong[0] if wrong else "this has no default, so please give it")


def answers_of(values: dict[str, str]) -> Answers:
    """Return the answers that the texts give."""
    from reconsume.sidecar.deploy.starter.configuration import Answers

    return Answers(
        group=values.get("group", ""),
        topics=tuple(name.strip() for name in values.get("topics", "").split(",") if name.strip()),
        servers=values.get("servers", ""),
        mode=values.get("mode", "push"),
        url=values.get("url", ""),
    )


def files(answers: Answers, path: Path, configured: str, *, compose: bool, kubernetes: Path | None) -> dict[Path, str]:
    """Return the texts of the files to write. `configured`: that of the configuration.

    Raises ConfigError if one cannot be made for these answers.
    """
    from reconsume.sidecar.deploy.starter.compose import compose as compose_file
    from reconsume.sidecar.deploy.starter.manifests import manifests
    from reconsume.sidecar.deploy.starter.placeholder import placeholder_faults

    if (compose or kubernetes is not None) and (wrong := placeholder_faults(answers)):
        raise ConfigError(wrong)
    texts = {path: configured}
    if compose:
        texts[path.parent / COMPOSE] = compose_file(answers, path.name)
    if kubernetes is not None:
        made = manifests(answers, configured, printable(str(path)))
        texts = {kubernetes / name: text for name, text in made.items()} | texts
    return texts


def print_files(texts: dict[Path, str]) -> None:
    """Print the texts; if there are several, each below the name of its file."""
    for path, text in texts.items():
        head = f"# {printable(str(path))}\n" if len(texts) > 1 else ""
        write(f"{head}{text}".rstrip("\n"))


def write_files(texts: dict[Path, str], *, force: bool, hint: str) -> None:
    """Write all files, or none if one is there and `force` is not given. Raises ConfigError, which ends with `hint`."""
    there = [path for path in texts if os.path.lexists(path)]
    if there and not force:
        names = ", ".join(printable(str(path)) for path in there)
        raise ConfigError([f"{names}: is there already, and nothing was written; --force replaces it{hint}"])
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path):
            replace(path.resolve(), text)
        else:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        talk(f"{printable(str(path))}: written")
