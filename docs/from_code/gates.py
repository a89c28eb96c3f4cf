"""feature-gates.md: every feature gate, from `dra_driver.features`."""

from docs.from_code.tables import WRITTEN, code, page, table
from dra_driver.features import GATES


def gates_page() -> str:
    """The whole of feature-gates.md."""
    rows = (
        (
            f"`{gate.feature}`",
            gate.stage,
            "on" if gate.default else "off",
            gate.means + (f" Needs {code(gate.needs)}." if gate.needs else ""),
        )
        for gate in GATES.values()
    )
    return page(
        "# Feature gates",
        WRITTEN,
        "Feature gates enable or disable features for the whole cluster. Set them with the chart's value"
        " `featureGates`, or"
        " with `--feature-gates A=true,B=false` of controller and plugin, which must be the same. If a gate is"
        " off, a policy or"
        " claim that needs the feature is refused with the gate's name. *Alpha* features are off by default and"
        " may change in"
        " any release; *beta* features are on by default.",
        table(("Gate", "Stage", "Default", ""), rows),
        "```yaml values\nfeatureGates:\n  MPSSupport: false\n  MigExtendedResources: true\n```",
        "Gates have the same names as in NVIDIA's own driver. There most gates exclude each other; here they do not,"
        " because the driver decides for each GPU what can be combined: [sharing.md](sharing.md#what-excludes-what).",
    )
