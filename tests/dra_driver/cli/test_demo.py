"""Which examples `dractl demo` runs on nodes that somebody names."""

from dra_driver.cli.demo import fitting_examples, scenarios_in
from dra_driver.cli.plan import policy_of
from dra_driver.simulation.cluster import parse_nodes

FOUND = scenarios_in(None)
POLICY = policy_of(document for scenario in FOUND for document in scenario.policies)


def fitting(nodes: str) -> frozenset[str]:
    return fitting_examples(FOUND, parse_nodes(nodes), POLICY)


def test_on_a_rack_the_domain_runs_and_what_needs_other_gpus_does_not() -> None:
    rack = fitting("gb200:2")
    assert {"compute-domain-two-trays", "one-gpu", "nvlink-pair", "extended-resource"} <= rack
    assert rack.isdisjoint({"mig-by-hand", "diagnose-a-sick-gpu", "passthrough"})
    assert "compute-domain-two-trays" not in fitting("gb200:1")


def test_without_nvlink_there_is_no_pair_and_without_imex_no_domain() -> None:
    small = fitting("t4")
    assert {"one-gpu", "extended-resource"} <= small
    assert small.isdisjoint({"nvlink-pair", "compute-domain-two-trays", "mig-on-demand"})
