"""What a cut-over plan is made of: stages of steps, and the commands of each. Values only."""

from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.meta import JsonObject


class Act(StrEnum):
    """What a step is, for programs."""

    WRITE = "write"
    CLEAN = "clean"
    LABEL = "label"
    FENCE_PLUGIN = "fence-plugin"
    INSTALL = "install"
    CORDON = "cordon"
    STOP_PLUGIN = "stop-plugin"
    AWAIT_PLUGIN_GONE = "await-plugin-gone"
    EVICT = "evict"
    AWAIT_FREE = "await-free"
    START_DRIVER = "start-driver"
    AWAIT_DRIVER = "await-driver"
    UNCORDON = "uncordon"
    APPLY = "apply"
    REMOVE_PLUGIN = "remove-plugin"
    LIFT_FENCE = "lift-fence"
    STOP_OFFERING = "stop-offering"
    AWAIT_NOT_OFFERED = "await-not-offered"
    AWAIT_NO_CLAIMS = "await-no-claims"
    STOP_DRIVER = "stop-driver"
    AWAIT_DRIVER_GONE = "await-driver-gone"
    START_PLUGIN = "start-plugin"
    AWAIT_PLUGIN = "await-plugin"
    UNFENCE_PLUGIN = "unfence-plugin"
    UNINSTALL = "uninstall"


@dataclass(frozen=True, slots=True)
class Step:
    act: Act
    what: str
    """A sentence."""
    commands: tuple[str, ...]
    """For a shell, in this order; each ends with status 0 when it is done. Empty: something to do by hand."""
    note: str = ""
    """What to know before."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that belong together. `node` None: of the whole cluster."""

    title: str
    node: str | None
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    forward: tuple[Stage, ...]
    back: tuple[Stage, ...]
    """The way back, from wherever one has stopped before `REMOVE_PLUGIN`."""
    conflicts: tuple[str, ...]
    """Nodes whose GPUs both offer now."""
    values: JsonObject
    """Of the chart, for the time of the change."""
    refusal: str = ""
    """Why there is none, where somebody else offers the GPUs; then all else is empty."""

    @property
    def empty(self) -> bool:
        return not self.forward

    @property
    def has_only_its_end(self) -> bool:
        """Whether an earlier one brought all nodes over, and went no further."""
        return bool(self.forward) and not any(stage.node for stage in self.forward)
