"""Which Kubernetes evaluates an expression: its version and gates decide what `device` has and which functions exist.

An API server accepts a new or changed expression only when the version before it knew all of its functions, so that it
can still be read after a rollback, and when the gates of the others are on. For stored expressions, and in the
scheduler, everything counts that it knows, whatever the gates are. What every server since 1.33 has (loops over two
variables, `cel.bind`, optionals, versions) is not asked about.

Source: k8s.io/apiserver environment.EnvSet; compiler of k8s.io/dynamic-resource-allocation.
"""

from dataclasses import dataclass

from dra_driver import kubernetes


@dataclass(frozen=True, slots=True)
class Server:
    """`minor` is the version 1.`minor`."""

    minor: int = kubernetes.CURRENT
    consumable_capacity: bool = True
    """DRAConsumableCapacity."""
    list_attributes: bool = False
    """DRAListTypeAttributes: attributes may be lists, so they can be looped over."""
    stored: bool = True
    """Whether expressions are stored already, or read by the scheduler; False for what a user is about to create."""

    @classmethod
    def of(cls, minor: int, *, stored: bool = True, list_attributes: bool = False) -> "Server":
        """Kubernetes 1.`minor` with its default gates."""
        gates = kubernetes.FeatureGates(minor)
        return cls(minor, gates.enabled("DRAConsumableCapacity"), list_attributes, stored)

    @property
    def multiple_allocations(self) -> bool:
        """Whether `device.allowMultipleAllocations` exists."""
        return self.consumable_capacity or (self.stored and self.minor >= 34)

    @property
    def includes(self) -> bool:
        """Whether values have the function `includes`."""
        return self.list_attributes or (self.stored and self.minor >= 36) or self.known >= 37

    @property
    def list_values(self) -> bool:
        """Whether lists that devices have can be read; from 1.37 on the gate only says whether they can be stored."""
        return self.list_attributes or self.minor >= 37

    @property
    def known(self) -> int:
        """The version whose functions can be used."""
        return self.minor if self.stored else self.minor - 1


CURRENT = Server()
