"""The cluster that examples are run on: which nodes, and what an administrator has done there.

An examples folder may have a `cluster.yaml` that says it; each example may have a PublishingPolicy among its manifests,
for what it needs an administrator to allow. The policies of all examples of one run are put together: they select
nodes by label, so they do not get in each other's way.

```yaml
nodes:
- profile: a30
  labels: {example.com/mig: by-hand}
  acts:                         # before the plugin starts, as `dractl simulate` has them
  - mig-mode 0 on
  - make-mig 0 2g.12gb 0
- profile: t4
  count: 2
- profile: my-node.tar.gz       # a file of `dractl record`, beside this one
```
"""

from collections.abc import Iterable
from pathlib import Path

import yaml
from pydantic import ConfigDict, Field

from dra_driver.api.meta import JsonObject, Model
from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import InvalidInput
from dra_driver.names import model_label, names_record
from dra_driver.simulation.cluster import SimulatedNode

FILE = "cluster.yaml"
POLICY_KIND = "PublishingPolicy"


class _Strict(Model):
    model_config = ConfigDict(**{**Model.model_config, "extra": "forbid"})


class _Node(_Strict):
    profile: str
    count: int = Field(default=1, ge=1, le=1000)
    labels: dict[str, str] = Field(default_factory=dict)
    acts: list[str] = Field(default_factory=list)


class _Cluster(_Strict):
    nodes: list[_Node] = Field(min_length=1)


def nodes_of(folder: Path) -> tuple[SimulatedNode, ...] | None:
    """The nodes that the folder's `cluster.yaml` wants; None when it has none. Raises InvalidInput."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(str(error), about=str(path)) from error
    if not isinstance(document, dict):
        raise InvalidInput("wants a mapping with `nodes`", about=str(path))
    seen: dict[str, int] = {}
    simulated_nodes = []
    for node in _Cluster.of(document, about=str(path)).nodes:
        model = str((folder / node.profile).resolve()) if names_record(node.profile) else node.profile
        for _ in range(node.count):
            index = seen.get(model, 0)
            seen[model] = index + 1
            acts = tuple(tuple(act.split()) for act in node.acts)
            labels = tuple(sorted(node.labels.items()))
            simulated_nodes.append(SimulatedNode(f"{model_label(model)}-{index + 1}", model, index, labels, acts))
    return tuple(simulated_nodes)


def policy_of(documents: Iterable[JsonObject]) -> PublishingPolicy:
    """One policy of many: lists one after the other; all must agree on everything else. Raises InvalidInput."""
    together: JsonObject = {}
    for document in documents:
        PublishingPolicy.of(document, about=f"{POLICY_KIND} of an example")
        for field, value in document.items():
            if isinstance(value, list):
                together[field] = [*together.get(field, []), *value]
            elif together.setdefault(field, value) != value:
                raise InvalidInput(f"two examples say different things: {value!r}", about=POLICY_KIND, field=field)
    return PublishingPolicy.of(together, about=POLICY_KIND)
