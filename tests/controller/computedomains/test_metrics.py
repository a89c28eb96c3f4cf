"""What Prometheus reads of domains."""

from prometheus_client import CollectorRegistry, generate_latest

from controller.computedomains.keeper import DomainCollector
from dra_driver.api.computedomain import ComputeDomainStatus


def test_domains_are_counted_and_say_why_they_wait() -> None:
    ready = ComputeDomainStatus.of(
        {
            "status": "Ready",
            "nodes": [{"name": "a", "index": 0, "status": "Ready"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "AllNodesReady", "lastTransitionTime": "t"}],
        }
    )
    waiting = ComputeDomainStatus.of(
        {
            "nodes": [{"name": "b", "index": 0, "status": "Ready"}, {"name": "c", "index": 1, "status": "NotReady"}],
            "conditions": [
                {"type": "Ready", "status": "False", "reason": "DaemonsNotReady", "lastTransitionTime": "t"}
            ],
        }
    )
    registry = CollectorRegistry()
    registry.register(DomainCollector(lambda: {("team", "one"): ready, ("team", "two"): waiting}))
    text = generate_latest(registry).decode()
    assert 'nvidia_dra_compute_domain_info{status="Ready"} 1.0' in text
    assert 'nvidia_dra_compute_domain_info{status="NotReady"} 1.0' in text
    assert 'gpu_dra_compute_domain_nodes{domain="two",namespace="team",status="NotReady"} 1.0' in text
    assert 'gpu_dra_compute_domain_reason{domain="two",namespace="team",reason="DaemonsNotReady"} 1.0' in text
