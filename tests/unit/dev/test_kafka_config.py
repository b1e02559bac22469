"""What a node of the embedded cluster is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconsume.sidecar.dev.kafka.node_config import Plan, server_properties


def plans(nodes: int, proxied: bool = False) -> list[Plan]:
    return [
        Plan(n, Path(f"/k/{n}"), 100 + n, 200 + n, 300 + n if proxied else 0, f"proxy:{n}" if proxied else "")
        for n in range(nodes)
    ]


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(("nodes", "copies", "in_sync"), [(1, "1", "1"), (2, "1", "1"), (3, "3", "2"), (4, "3", "2")])
def test_three_nodes_survive_the_loss_of_one(nodes: int, copies: str, in_sync: str) -> None:
    all_plans = plans(nodes)
    told = properties(server_properties(all_plans[0], all_plans, {}))
    factors = {value for name, value in told.items() if name.endswith("replication.factor")}
    assert factors == {copies}
    assert {told["min.insync.replicas"], told["transaction.state.log.min.isr"]} == {in_sync}


def test_a_proxied_node_advertises_the_proxy_only_on_the_listener_behind_it() -> None:
    [plan] = plans(1, proxied=True)
    told = properties(server_properties(plan, [plan], {}))
    assert told["listeners"] == "PLAIN://127.0.0.1:100,CONTROLLER://127.0.0.1:200,PROXY://127.0.0.1:300"
    assert told["advertised.listeners"] == "PLAIN://127.0.0.1:100,PROXY://proxy:0"


def test_overrides_win() -> None:
    [plan] = plans(1)
    told = properties(server_properties(plan, [plan], {"min.insync.replicas": 9, "x.y": "z"}))
    assert (told["min.insync.replicas"], told["x.y"]) == ("9", "z")
