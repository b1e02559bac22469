"""`init`: write the first files for a service, from questions or from options.

The values that only the user knows come from options, then from questions; the settings themselves check them. All
files are made before the first is written, and none is written if one is in the way. At its end the command prints
what to do next.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reconsume.sidecar.cli.inject import ANNOTATIONS
from reconsume.sidecar.cli.terminal.confirm import question
from reconsume.sidecar.cli.terminal.options import Options, Texts
from reconsume.sidecar.cli.terminal.output import talk, write
from reconsume.sidecar.deploy.starter.compose import VARIABLE
from reconsume.sidecar.deploy.starter.token import TOKENS, ignore_token, write_token
from reconsume.sidecar.errors import ConfigError
from reconsume.sidecar.files import replace_file
from reconsume.sidecar.hints import hint
from reconsume.sidecar.printable import printable
from reconsume.sidecar.settings.addresses import is_loopback
from reconsume.sidecar.settings.load import BASE, DEFAULT_FILE, load
from reconsume.sidecar.settings.reference import MODELINE, SCHEMA_FILE, schema_text
from reconsume.sidecar.settings.yaml_text import read_yaml

if TYPE_CHECKING:
    from reconsume.sidecar.deploy.starter.configuration import Answers

COMPOSE = "compose.yaml"
KEEP = "; without --group and the other values a configuration that is there is taken as it is"
QUESTIONS = {
    "group": ("The service's consumer group", None),
    "topics": ("The topics that it consumes, with a comma between them", None),
    "bootstrap_servers": ("The brokers, as host:port", "localhost:9092"),
    "mode": ("How it gets records: push (HTTP requests), pull (it asks), relay (it reads Kafka), or spark", "push"),
    "url": ("The service's address", "http://127.0.0.1:8080/events"),
}
"""The values that are asked for, in this order: the question, and what an empty answer means."""
VALUES: Texts = {name: ANNOTATIONS[name] for name in QUESTIONS}
GIVEN_BY = {
    "group": "--group GROUP",
    "topics": "--topics TOPIC,…",
    "bootstrap_servers": "--bootstrap-servers HOST:PORT",
    "url": "--url URL, or --mode pull, relay or spark",
}
"""What a value that may not be asked for can be given by."""


def init(
    options: Options,
    /,
    compose: Annotated[
        bool, typer.Option("--compose", help=f"Write {COMPOSE} too: Kafka, the sidecar and a service.")
    ] = False,
    kubernetes: Annotated[
        Path | None,
        typer.Option("--kubernetes", metavar="DIR", help="Write manifests of a service and its sidecar there."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files, and write nothing.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Ask nothing: name the options that are missing, and write nothing.")
    ] = False,
    **texts: str | None,
) -> None:
    """Write the first reconsume.yaml.

    Asks for what no option gives, if there is a terminal. Each value is checked as a sidecar checks it, and each line
    of the file is explained in it. -c says where the file goes; a file that is there stays, unless --force is given.
    With --compose or --kubernetes and none of the values, a configuration that is there is taken as it is, and only
    the files around it are written. Beside it go its schema, for editors, and a file with an operator's token, for its
    owner alone, with a line of .gitignore. At the end it prints the next commands.

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
    values = {name: text for name, text in texts.items() if text is not None}
    around = compose or kubernetes is not None
    kept = around and not values and path.exists()
    answers = answers_in(load(path, (), {})) if kept else complete(values, may_ask=not yes and sys.stdin.isatty())
    configured = path.read_text("utf-8") if kept else configuration(answers)
    contents = files(answers, path, configured, compose=compose, kubernetes=kubernetes)
    if kept:
        talk(f"{printable(str(path))}: is there, and is taken as it is")
        del contents[path]
    if dry_run:
        for file, text in contents.items():
            head = f"# {printable(str(file))}\n" if len(contents) > 1 else ""
            write(f"{head}{text}".rstrip("\n"))
        return
    write_files(contents, force=force, hint=KEEP if around and path in contents else "")
    if path in contents:
        write_schema(path.parent)
    write_tokens(path.parent)
    talk("")
    for line in next_commands(answers, path, compose=compose, kubernetes=kubernetes):
        talk(line)


def complete(values: dict[str, str], *, may_ask: bool) -> Answers:
    """Return the answers: those that options give, and the others from questions.

    Raises ConfigError with every wrong value, and BadParameter if one is missing and may not be asked for.
    """
    from reconsume.sidecar.deploy.starter.configuration import faults_of

    if "url" in values:
        values = {"mode": "push", **values}
    if wrong := faults_of(answers_of(values), partly=True):
        raise ConfigError(wrong)
    is_push = values.get("mode", "push") == "push"
    missing = [name for name in QUESTIONS if name not in values and (is_push or name != "url")]
    if missing and not may_ask:
        why = "there is no terminal to ask on" if not sys.stdin.isatty() else "with --yes nothing is asked"
        lines = [f"  {GIVEN_BY[name]}" for name in missing if name in GIVEN_BY]
        raise typer.BadParameter("\n".join((f"{why}. These are missing:", *lines)))
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
        text = question(*QUESTIONS[name])
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
        servers=values.get("bootstrap_servers", ""),
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
    if kubernetes is not None and (BASE,) in read_yaml(configured).lines:
        raise ConfigError(
            [f"base: {printable(str(path))} extends another file, and the manifests have one alone; write it whole"]
        )
    texts = {path: configured}
    if compose:
        texts[path.parent / COMPOSE] = compose_file(answers, path.name)
    if kubernetes is not None:
        # The schema is next to the configuration, and not next to its copy for Kustomize.
        made = manifests(answers, configured.removeprefix(MODELINE), printable(str(path)))
        texts = {kubernetes / name: text for name, text in made.items()} | texts
    return texts


def write_files(texts: dict[Path, str], *, force: bool, hint: str) -> None:
    """Write all files, or none if one is there and `force` is not given. Raises ConfigError, which ends with `hint`."""
    there = [path for path in texts if os.path.lexists(path)]
    if there and not force:
        names = ", ".join(printable(str(path)) for path in there)
        raise ConfigError([f"{names}: is there already, and nothing was written; --force replaces it{hint}"])
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
        talk(f"{printable(str(path))}: written")


def write_schema(folder: Path) -> None:
    """Write the schema of this version, by which editors check the configuration next to it."""
    replace_file(folder / SCHEMA_FILE, f"{schema_text()}\n")
    talk(f"{printable(str(folder / SCHEMA_FILE))}: written, for editors")


def write_tokens(folder: Path) -> None:
    """Write the file with an operator's token, unless it is there, and keep it out of git. Raises ConfigError."""
    name, ignored = printable(str(folder / TOKENS)), printable(str(folder / ".gitignore"))
    try:
        state = "written: an operator's token" if write_token(folder) else "is there, and stays as it is"
        talk(f"{name}: {state}")
        if ignore_token(folder):
            talk(f"{ignored}: names it, so that git ignores it")
    except (OSError, UnicodeDecodeError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else "its text is not UTF-8"
        raise ConfigError([f"{name}, or .gitignore there: cannot be written: {why}"]) from None


def next_commands(answers: Answers, path: Path, *, compose: bool, kubernetes: Path | None) -> Iterator[str]:
    """Yield what to do now, with the files that were written. `answers`: those of the configuration `path`."""
    token, folder = printable(str(path.parent / TOKENS)), printable(str(kubernetes))
    if compose or kubernetes is not None:
        yield "make image   # in a clone of Reconsume's repository: no registry serves the image"
    if kubernetes is None:
        file = None if path == DEFAULT_FILE else path
        yield f"{hint('config check', file)}   # finds every fault at once"
        yield f"{hint('topics apply', file)}   # creates the topics of the group; the main topics must exist"
        if answers.mode == "spark":
            yield f"rules_from('{printable(str(path))}', name=…)   # in the Spark job; see docs/spark-consumers.md"
        else:
            yield f"{hint('run', file)}            # the sidecar"
            yield f"{hint('dev up', path)}   # or all of it with a Kafka of its own, to try it out"
    if compose:
        up = f"{VARIABLE}=$(cat {token}) docker compose -f {printable(str(path.parent / COMPOSE))} up"
        yield f"{up}   # all of it on this machine; needs Docker Compose 2.23.1"
    if kubernetes is not None:
        yield f"push it to the registry of the cluster, and name that under `images` in {folder}/kustomization.yaml"
        yield f"kubectl apply -k {folder}   # the service, its sidecar, and a Job for the topics of the group"
        yield "the main topics must exist"
        if is_loopback(answers.servers.split(",")[0].rpartition(":")[0]):
            yield f"in a pod localhost is the pod itself: name the cluster's brokers in {folder}/reconsume.yaml"
    yield f"kubectl create secret generic reconsume-ui --from-file=token={token}   # operators' token, in a cluster"
