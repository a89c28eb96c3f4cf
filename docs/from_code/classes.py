"""classes.md: the DeviceClasses that come with the driver, as they are in deviceclasses/."""

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
        "By which claims name what they want, in `deviceClassName`. The chart installs those of this page unless"
        " `deviceClasses.install` is false, and more of your own with `deviceClasses.extra`, which"
        " `dractl check VALUES.yaml` judges. What selectors in a request can"
        " add: [attributes.md](attributes.md).",
        *_classes(),
        "## A class for each MIG profile",
        "With the gate `MigProfileClasses` ([feature-gates.md](feature-gates.md)), which is on by"
        " default, the controller"
        f" makes a class for each MIG profile that some node publishes: `{class_name('1g.10gb')}`,"
        f" `{class_name('1c.3g.40gb')}`. In names `+` is `-`, and `-` is `-no`: that of `{_EXAMPLE}` is"
        f" `{class_name(_EXAMPLE)}`. A class stays when its last device goes. With the gate"
        f" `MigExtendedResources` it"
        f" answers to `{made['spec']['extendedResourceName']}`, too, as a device plugin does. A class"
        f" of such a name that"
        " somebody else made is left alone.",
        "With [`publisher: node`](upgrade.md#with-or-without-a-controller) there is no controller, and nobody makes"
        " such classes: use `mig.nvidia.com` and a selector, or make them yourself (`deviceClasses.extra`).",
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
