"""The words of the pages: plurals, states and facts for readers, whoever wrote the data."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconsume.sidecar.dlq.letters import Eligibility
from reconsume.sidecar.printable import noun_of, plural
from reconsume.sidecar.ui.letter_form import STATES
from reconsume.sidecar.ui.queries import reads_of
from reconsume.sidecar.ui.templating import FOLDER, environment, fact
from tests.support.kafka.broker import Broker
from tests.support.kafka.group_topics import UNUSED, create_group, fresh_group
from tests.support.kafka.topic_io import produce
from tests.support.rings import EXAMPLES
from tests.support.sidecar.redrive import dead_letter
from tests.ui.scene import dashboard
from tests.ui.web import Visitor

NOUNS = (
    "attempt", "byte", "entry", "event", "failure", "instance", "key", "letter", "level", "minute", "offset",
    "partition", "record", "redrive", "retry", "topic",
)  # fmt: skip
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))
WORDS: Any = environment().get_template("words.html").module

# --- plurals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "noun", "shown"),
    [(0, "record", "0 records"), (1, "dead letter", "1 dead letter"), (2, "dead letter", "2 dead letters"),
     (1, "retry", "1 retry"), (2, "retry", "2 retries"), (3, "entry", "3 entries"), (2, "key", "2 keys"),
     (2, "day", "2 days")],
)  # fmt: skip
def test_a_count_has_the_form_of_its_noun(count: int, noun: str, shown: str) -> None:
    assert plural(count, noun) == shown


def test_no_page_writes_a_count_before_a_noun_of_one_form() -> None:
    """Given a number and a noun on a page, then `plural` or `noun` has made the noun, because 1 is a number too."""
    forms = "|".join(sorted({form for noun in NOUNS for form in (noun, noun_of(2, noun))}))
    counted = re.compile(rf"""\}}\}}(?:</\w+>)?\s+(?:[a-z]+\s)?(?:{forms})\b|~ ["'] (?:[a-z]+ )?(?:{forms})\b""")
    found = [(file.name, match[0]) for file in TEMPLATES for match in counted.finditer(file.read_text())]
    assert not found
    used = {
        noun.split()[-1] for file in TEMPLATES for noun in re.findall(r'\|(?:plural|noun)\("([^"]+)"', file.read_text())
    }
    assert used <= set(NOUNS), "a noun that a page counts is one that this test looks for"


def test_a_group_with_one_of_each_says_one(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> None:
    group = create_group(fresh_group(kafka.bootstrap), partitions=1, also=UNUSED)
    produce(group.bootstrap, group.dlq, [dead_letter(group, 1, b"v", reason="bad-sku")])
    with dashboard(group, tmp_path_factory.mktemp("one")) as scene:
        visitor = Visitor(scene)
        visitor.sign_in()
        pages = [visitor.get(path).body.decode() for path in ("/dlq", "/find?text=v", "/instances", "/part/group")]
        pages.append(visitor.post("/dlq/plan", {"csrf": visitor.csrf()}).body.decode())
        pages.append(visitor.post("/dlq/dismissal", {"csrf": visitor.csrf()}).body.decode())
    texts = [re.sub(r"<[^>]*>|\s+", " ", page) for page in pages]
    assert "Found: 1 of the 1 dead letter in the topic" in " ".join(texts[0].split())
    forms = "|".join(noun_of(2, noun) for noun in NOUNS)
    assert [re.findall(rf"\b1 (?:dead )?(?:{forms})\b", text) for text in texts] == [[]] * len(texts)


# --- words instead of ours --------------------------------------------------------------------------------------------


def test_every_state_of_a_dead_letter_has_words_for_readers() -> None:
    assert WORDS.LETTERS.keys() == STATES.keys()
    for state in Eligibility:
        assert f">{WORDS.LETTERS[str(state)]}<" in WORDS.letter_state(str(state))
    assert "ready" not in WORDS.LETTERS.values()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["orders:0:1", "bad-sku", "30s", "", "\u202e\n\x1b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "since", "reason"]), inner),
    max_leaves=8,
)  # fmt: skip


@given(JSON)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_fact_is_shown_in_words_and_never_as_a_programmer_writes_it(value: object) -> None:
    shown = fact(value)
    assert not set("{}[]'\"") & set(shown)
    assert shown.isprintable()
    assert not {"None", "True", "False"} & set(re.split(r"\W+", shown))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"id": ["orders:0:1", "orders:0:2"]}, "id orders:0:1 or orders:0:2"),
        ({"reason": ["bad-sku"], "state": "open"}, "reason bad-sku, state open"),
        ({"since": 1_763_690_000_000}, "since 2025-11-21 01:53:20 UTC"),
        (True, "yes"),
        (50.0, "50.0"),
        ([{"topic": "orders", "max": 3}], "topic orders, max 3"),
    ],
)
def test_the_condition_of_an_action_is_a_sentence(value: object, shown: str) -> None:
    assert fact(value) == shown


LEVELS = {"g-RETRY-10s": 10_000, "g-RETRY-1m": 60_000, "g-RETRY-10m": 600_000}
OWN = {"orders-g-RETRY-1m": 60_000, "orders-g-RETRY-10s": 10_000, "bills-g-RETRY-10s": 10_000}


@pytest.mark.parametrize(
    ("topics", "levels", "words"),
    [
        ({*LEVELS, "orders", "g-READY"}, LEVELS, ("orders", "all 3 levels", "g-READY")),
        ({"g-RETRY-10m", "g-RETRY-10s"}, LEVELS, ("levels 10s, 10m",)),
        ({"g-RETRY-1m"}, LEVELS, ("level 1m",)),
        ({"g-RETRY-1m"}, {"g-RETRY-1m": 60_000}, ("level 1m",)),
        ({"orders-g-RETRY-1m", "orders-g-RETRY-10s"}, OWN, ("orders-g-RETRY-10s", "orders-g-RETRY-1m")),
        ({"bills", "orders"}, LEVELS, ("orders", "bills")),
        (set(), LEVELS, ()),
    ],
)
def test_what_an_instance_reads_is_named_by_levels_in_the_order_of_their_delay(
    topics: set[str], levels: dict[str, int], words: tuple[str, ...]
) -> None:
    assert reads_of(topics, ("orders", "bills"), levels) == words
