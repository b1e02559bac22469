"""Every Kafka client of the product is made by one function, which takes no property that brings code along."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from reconsume.sidecar.kafka.clients import make_client
from reconsume.topics.client_rules import NATIVE, UnsafePropertyError

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("sidecar", "spark", "once", "topics", "reconsume", "pyspark_reconsume")
CLASSES = frozenset(
    {
        "Consumer",
        "Producer",
        "AdminClient",
        "DeserializingConsumer",
        "SerializingProducer",
        "AIOProducer",
    }
)
MAKERS = frozenset({"make_client", "take_client", "new_client", "checked_client"})
"""Each of the first two gives its class to the next: `new_client`, `make_client`, `checked_client`."""


def imported(tree: ast.Module) -> set[str]:
    """The names under which a module has classes of the client library."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").partition(".")[0] == "confluent_kafka"]
    return {alias.asname or alias.name for node in ours for alias in node.names if alias.name in CLASSES}


def made_elsewhere(source: str) -> Iterator[str]:
    """Calls of a module that make a client themselves, or hand its class to something else than a maker."""
    tree = ast.parse(source)
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in CLASSES:
            yield ast.unparse(node)
        if isinstance(node, ast.ClassDef) and any(
            isinstance(base, ast.Name) and base.id in names for base in node.bases
        ):
            yield f"class {node.name}"
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        given = {arg.id for arg in node.args if isinstance(arg, ast.Name)}
        if called in names or (given & names and called not in MAKERS):
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "source",
    [
        "from confluent_kafka import Consumer\nConsumer({})",
        "from confluent_kafka import Producer as P\nP({})",
        "from confluent_kafka.admin import AdminClient\npartial(AdminClient, {})",
        "import confluent_kafka\nconfluent_kafka.Consumer({})",
        "from confluent_kafka import Consumer\nclass Own(Consumer): ...",
    ],
)
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert list(made_elsewhere(source))


def test_every_client_of_the_product_is_made_by_one_function() -> None:
    found = {
        f"{file.relative_to(ROOT)}: {call}"
        for package in PRODUCT
        for file in (ROOT / package).rglob("*.py")
        for call in made_elsewhere(file.read_text("utf-8"))
    }
    assert found == set()


@pytest.mark.parametrize("client_class", [Consumer, Producer, AdminClient])
@pytest.mark.parametrize("name", sorted(NATIVE))
@pytest.mark.parametrize("form", ["{}", "{} ", "upper", "nested"])
def test_no_client_is_made_with_a_property_that_brings_code_along(client_class: type, name: str, form: str) -> None:
    config: dict[str, object] = {"group.id": "g"}
    if form == "nested":
        config["default.topic.config"] = {name: "/tmp/evil"}
    else:
        config[name.upper() if form == "upper" else form.format(name)] = "/tmp/evil"
    with pytest.raises(UnsafePropertyError, match="may not bring code along"):
        make_client(client_class, config)
