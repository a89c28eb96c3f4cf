"""feature-gates.md: every feature gate, as `dra_driver.features` has it."""

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
        "Whether a behaviour may be used at all in a cluster. With the chart they are the value"
        " `featureGates`; without, `--feature-gates A=true,B=false` of controller and plugin, who must have the"
        " same. A gate that is off hides nothing: a policy or a claim that asks for the behaviour is refused, with"
        " the gate's name. *Alpha* is off by default and may change in any release, *beta* is on by default.",
        table(("Gate", "Stage", "Default", ""), rows),
        "```yaml values\nfeatureGates:\n  MPSSupport: false\n  MigExtendedResources: true\n```",
        "What NVIDIA's own driver has a gate for, and means the same here, has the same name. There,"
        " most gates exclude"
        " each other; here none does, for what excludes what is decided for each GPU:"
        " [sharing.md](sharing.md#what-excludes-what).",
    )
