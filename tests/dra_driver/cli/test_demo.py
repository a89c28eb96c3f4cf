"""Which examples `dractl demo` runs on nodes that somebody names."""

import pytest

from dra_driver.cli.demo import _unfit, fitting_examples, scenarios_in
from dra_driver.simulation.cluster import parse_nodes

FOUND = scenarios_in(None)


def fitting(nodes: str) -> frozenset[str]:
    return fitting_examples(FOUND, parse_nodes(nodes))


def test_on_a_rack_the_domain_runs_and_what_needs_other_gpus_does_not() -> None:
    rack = fitting("gb200:2")
    assert {"compute-domain-two-trays", "one-gpu", "nvlink-pair", "extended-resource"} <= rack
    assert rack.isdisjoint({"mig-by-hand", "diagnose-an-unhealthy-gpu", "passthrough"})
    assert "compute-domain-two-trays" not in fitting("gb200:1")


def test_without_nvlink_there_is_no_pair_and_without_imex_no_domain() -> None:
    small = fitting("t4")
    assert {"one-gpu", "extended-resource"} <= small
    assert small.isdisjoint({"nvlink-pair", "compute-domain-two-trays", "mig-on-demand"})


@pytest.mark.parametrize("minor", [34, 35])
def test_an_older_kubernetes_is_not_asked_for_what_it_drops_or_does_not_offer(minor: int) -> None:
    reasons = _unfit(FOUND, parse_nodes("dgx-h100"), minor)
    drops = {name for name, why in reasons.items() if why == f"Kubernetes 1.{minor} drops a part of it by default"}
    assert drops == {"shares-memory-and-cores", "diagnose-an-unhealthy-gpu"}
    lacks = {name for name, why in reasons.items() if "does not offer" in why}
    assert lacks >= {"extended-resource"}
    assert {"one-gpu", "mps-one-claim", "preference-list", "admin-monitoring"}.isdisjoint(reasons)
