"""A simulated kubelet, as far as a DRA driver can see it."""

from dra_driver.simulation.kubelet.kubelet import SimulatedKubelet
from dra_driver.simulation.kubelet.registry import Times

__all__ = ["SimulatedKubelet", "Times"]
