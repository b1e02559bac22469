"""The network between pods and nodes: a proxy before each node, which can lose packets and keep requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from reconsume.sidecar.dev.kafka.embedded import EmbeddedKafka
from tests.support.kafka.proxy import KafkaProxy
from tests.support.kafka.proxy_rules import Rule


class Network:
    """One proxy for each node, by its id. Only pods go through them."""

    def __init__(self, proxies: list[KafkaProxy]) -> None:
        self.proxies = proxies

    def address(self, node: int) -> str:
        """What a node advertises to pods."""
        return self.proxies[node].address

    def connect(self, kafka: EmbeddedKafka) -> None:
        """Pass on to the nodes of a cluster that runs."""
        for node in kafka.nodes:
            self.proxies[node.id].target(node.plan.proxied_port)

    @contextmanager
    def rule(self, *rules: Rule) -> Iterator[None]:
        """Rules that hold for a while before every node: whichever is asked first acts."""
        for proxy in self.proxies:
            for rule in rules:
                proxy.add(rule)
        try:
            yield
        finally:
            for proxy in self.proxies:
                for rule in rules:
                    proxy.remove(rule)

    @property
    def problems(self) -> list[str]:
        """What went wrong in the proxies themselves."""
        return [repr(problem) for proxy in self.proxies for problem in proxy.problems]


@contextmanager
def network(nodes: int) -> Iterator[Network]:
    """Proxies that run; nothing is behind them before `connect`."""
    with ExitStack() as stack:
        yield Network([stack.enter_context(KafkaProxy()) for _ in range(nodes)])
