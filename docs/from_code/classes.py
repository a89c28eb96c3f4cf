"""classes.md: the DeviceClasses that ship with the driver, from deviceclasses/."""

import re
from collections.abc import Iterator

import yaml

from controller.classes import class_name, wanted_class
from docs.from_code.tables import WRITTEN, page
from dra_driver.bundled import DEVICE_CLASSES_FOLDER
from dra_driver.names import GPU_DRIVER

_EXAMPLE = "1g.10gb+me"


def classes_page() -> str:
    """The whole of classes.md."""
    made = wanted_class(_EXAMPLE, GPU_DRIVER, extended_resource=True)
    parts = [
        "# DeviceClasses",
        WRITTEN,
        "Claims refer to a class in `deviceClassName`. The chart installs the classes of this page unless"
        " `deviceClasses.install` is false. Add your own with `deviceClasses.extra`, and check them with"
        " `dractl check VALUES.yaml`. [attributes.md](attributes.md) lists what selectors in a request can use.",
        *_classes(),
        "## A class for each MIG profile",
        "With the gate `MigProfileClasses` ([feature-gates.md](feature-gates.md)), which is on by default, the"
        f" controller creates a class for each MIG profile that a node publishes: `{class_name('1g.10gb')}`,"
        f" `{class_name('1c.3g.40gb')}`. In names `+` becomes `-`, and `-` becomes `-no`: the class of `{_EXAMPLE}` is"
        f" `{class_name(_EXAMPLE)}`. A class stays after its last device disappears. With the gate"
        f" `MigExtendedResources` it also provides the extended resource `{made['spec']['extendedResourceName']}`, as"
        " a device plugin does. The controller does not change a class of such a name that it did not create.",
        "With [`publisher: node`](upgrade.md#with-or-without-a-controller) no controller creates these classes: use"
        " `mig.nvidia.com` and a selector, or create them yourself (`deviceClasses.extra`).",
        "```yaml\n" + yaml.safe_dump(made, sort_keys=False, width=110).strip() + "\n```",
    ]
    return page(*parts)


def _classes() -> Iterator[str]:
    for path in sorted(DEVICE_CLASSES_FOLDER.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        comment = " ".join(re.findall(r"^# (.*)$", text, re.MULTILINE))
        body = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip()
        yield f"## {yaml.safe_load(text)['metadata']['name']}"
        yield comment
        yield f"```yaml\n{body}\n```"
