"""Read YAML: plain values with the line of each key, and never much more than is written.

Aliases of aliases turn a few hundred bytes into millions of values. So `Composer` counts while the nodes are composed,
before a value is built: each node that is written, and for an alias all nodes of what it refers to. Nesting and numbers
have a limit, too. PyYAML itself bounds nothing.

`read_yaml` is for what users write (files, variables, `--set`): it never raises because of what the text says; broken
YAML and duplicate keys become faults with their line. `load_manifest` is for manifests, and raises. No fault quotes the
text, because the line may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from reconsume.sidecar.settings.table import KeyPath, dotted

MOST = 10_000
"""Keys and values of a configuration, which has a few hundred; and those that aliases stand for, in any document."""
DEEPEST = 100
"""Levels of nesting. PyYAML recurses, and so does the code that walks its values. The definition of a custom resource
has about forty."""
LONGEST_NUMBER = 100
"""Characters of a number. PyYAML reads 1:1:1… as digits of base 60, in quadratic time; Python prints no number of
thousands of digits."""
NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
UNFIT = "this does not fit what is before it: look at the indentation, at quotes, and at `-` and `:`"
SENTENCES = (
    (r"found character '\\t' that cannot start any token", "a tab is where only spaces may be"),
    (r"found character '(.)' that cannot start any token", "a value cannot begin with '{}': put it in quotes"),
    (
        r"mapping values are not allowed here",
        "a `:` is inside a value: put the value in quotes, or repair the indentation",
    ),
    (r"sequence entries are not allowed here", "an item of a list, `-`, must begin on a line of its own"),
    (r"found unexpected end of stream", "quotes are opened and not closed"),
    (r"expected ',' or '([\]}])', but got '<stream end>'", "a bracket is opened and not closed: `{}` is missing"),
    (r"expected ',' or '([\]}])', but got .*", "`{}` or a comma is missing before this"),
    (r"expected the node content, but found '(.)'", "a value is missing before `{}`"),
    (
        r"expected '<document start>', but found .*",
        "there is more after the end of the value, such as a bracket too many",
    ),
    (r"but found another document", "there is a second document: `---` may be on the first line alone"),
    (r"expected <block end>, but found .*", UNFIT),
    (
        r"expected (?:chomping or indentation|a comment or a line break).*",
        "the text behind `|` or `>` begins on the next line",
    ),
    (
        r"found undefined alias.*",
        "a value that begins with `*` refers to an anchor, and there is none of this name: put it in quotes",
    ),
    (
        r"could not determine a constructor for the tag.*",
        "a value that begins with `!` has a type that is not known here",
    ),
    (
        r"found unknown escape character.*",
        "in double quotes a `\\` begins an escape, and this is none: use single quotes",
    ),
    (r"special characters are not allowed", "there is a character that cannot be printed"),
)
"""What PyYAML says, and what we say. Each of our sentences has at most one sign of the text."""
HIDDEN = re.compile(r"['\"].{2,}['\"]")
GRAMMAR = re.compile(r"""([^'"\\]|'[^'"\\]'|'<[a-z ]+>')*""")
"""A message of PyYAML that quotes single signs and kinds of tokens alone, and nothing of the text."""


class Composer(yaml.SafeLoader):
    """A YAML loader for a document of at most `most` nodes, and of MOST nodes more that its aliases stand for.

    Raises yaml.MarkedYAMLError, with the line of the excess, if the document has more.
    """

    def __init__(self, text: str, most: int = MOST) -> None:
        super().__init__(text)
        self._most, self._written, self._aliased, self._depth = most, 0, 0, 0
        self._sizes: dict[int, int] = {}
        """How many nodes each complete node has, with its aliases followed, by its identity."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node, and count it. Raises yaml.MarkedYAMLError beyond a limit."""
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before = self._written + self._aliased
        self._written += 1
        self._depth += 1
        if self._depth > DEEPEST:
            raise yaml.MarkedYAMLError(problem=f"is nested deeper than {DEEPEST} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            problem = "an alias refers to the value that holds it"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        if is_alias:
            self._aliased += self._sizes[id(node)]
        else:
            self._sizes[id(node)] = self._written + self._aliased - before
        if self._written > self._most or self._aliased > MOST:
            limit = MOST if self._aliased > MOST else self._most
            problem = f"stands for more than {limit} values, aliases followed"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        if isinstance(node, yaml.ScalarNode) and node.tag in NUMBERS and len(node.value) > LONGEST_NUMBER:
            problem = f"has a number of more than {LONGEST_NUMBER} characters"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        return node


def load_manifest(text: str, most: int) -> object:
    """Return the value of the one document in `text`, which has at most `most` nodes. Raises yaml.YAMLError."""
    return Composer(text, most).get_single_data()


@dataclass(frozen=True, slots=True)
class Document:
    """A text that was read: its value, the line of each key or item, and the faults of the text itself."""

    value: object
    lines: dict[KeyPath, int]
    faults: tuple[str, ...] = ()


def read_yaml(text: str) -> Document:
    """Return the text as plain values. Never raises because of what the text says."""
    lines: dict[KeyPath, int] = {}
    faults: list[str] = []
    try:
        composer = Composer(text)
        node = composer.get_single_node()
        for path, line in () if node is None else walk(node, ()):
            if path in lines:
                faults.append(f"{dotted(path)}: is written twice, on lines {lines[path]} and {line}")
            lines.setdefault(path, line)
        return Document(None if node is None else composer.construct_document(node), lines, tuple(faults))
    except yaml.YAMLError as error:
        return Document(None, {}, (not_yaml(*described(error, text)),))
    except (ValueError, OverflowError, RecursionError):
        # PyYAML passes on Python's own errors, for a date such as 2026-13-45 or a number of ten thousand digits.
        return Document(None, {}, ("holds a value that cannot be read (an impossible date or number)",))


def walk(node: yaml.Node, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    """Yield the path and line of every key and item below `node`."""
    pairs: list[tuple[str | int, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        keys = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        pairs = [(key.value, key, value) for key, value in keys if key.tag != "tag:yaml.org,2002:merge"]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(index, value, value) for index, value in enumerate(node.value)]
    for name, position, value in pairs:
        yield (*path, name), position.start_mark.line + 1
        yield from walk(value, (*path, name))


def not_yaml(where: str, words: str) -> str:
    """Return the sentence about a text that is not YAML."""
    return f"is not YAML on {where}: {words}" if where else f"is not YAML: {words}"


def described(error: yaml.YAMLError, text: str, first: int = 1) -> tuple[str, str]:
    """Return `line 3, column 7` and what is wrong, without the text itself, because the line may hold a password.

    `first`: the number of the first line of `text`. That is empty if the error has no position.
    """
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", error)).partition("\n")[0]
    mark, where = getattr(error, "problem_mark", None), ""
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        where = f"line {first + before.count(chr(10))}, column {len(before) - before.rfind(chr(10))}"
    elif mark is not None:
        where = f"line {first + mark.line}, column {mark.column + 1}"
    for pattern, sentence in SENTENCES:
        if (match := re.fullmatch(pattern, problem)) is not None:
            return where, sentence.format(*match.groups())
    return where, problem if GRAMMAR.fullmatch(problem) else HIDDEN.sub("…", problem)
