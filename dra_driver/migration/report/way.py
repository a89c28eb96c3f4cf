"""What a cluster lacks, and the way to the driver and back, node by node, as Markdown. Pure."""

from collections.abc import Iterator, Sequence

from dra_driver.migration.cutover.steps import Plan, Stage
from dra_driver.migration.report.outcome import Unread
from dra_driver.migration.report.readiness import Answer, ReadinessCheck
from dra_driver.migration.report.wording import table, yaml_block

_ANSWERS = {Answer.YES: "yes", Answer.NO: "**no**", Answer.UNKNOWN: "not known"}


def ready(checks: Sequence[ReadinessCheck]) -> Iterator[str]:
    if not checks:
        return
    rows = [(one.question, _ANSWERS[one.answer], f"{one.why} {one.advice}".strip()) for one in checks]
    yield from table(("Needed", "There", ""), rows)
    yield ""
    yield "`dractl doctor` looks at nodes, runtime and driver themselves."


_NEEDED = ("Node", "Pod", "DaemonSet", "ResourceSlice", "CustomResourceDefinition", "ClusterPolicy", "GPUCluster")
"""Kinds without which a plan may be wrong."""


def way(plan: Plan | None, unread: Sequence[Unread] = ()) -> Iterator[str]:
    hidden = [one.what for one in unread if one.what in _NEEDED]
    if hidden:
        yield (
            f"**You may not list {', '.join(dict.fromkeys(hidden))}, so no plan can be relied on: what holds or offers "
            "GPUs may be missing. Ask the cluster with an account that may list them before anything is begun.**"
        )
        yield ""
    if plan is None and hidden:
        return
    if plan is None:
        yield (
            "The nodes are not known. With `--cluster`, or with what `kubectl get nodes,pods,daemonsets,resourceslices "
            "-A -o yaml` prints among the files of `--with`, the plan for each of them stands here."
        )
        return
    if plan.refusal:
        yield f"**There is none.** {plan.refusal}"
        return
    if plan.empty:
        yield "No device plugin has anything to give on any node that was read: there is nothing to move."
        return
    if plan.has_only_its_end:
        yield (
            "The driver has every node that was read, by an earlier plan; what is left is its end. The way back is in "
            "the report of that plan."
        )
        yield from _stages(plan.forward)
        return
    if plan.conflicts:
        yield f"**On {', '.join(plan.conflicts)} both offer the same GPUs now. Begin at once.**"
        yield ""
    yield (
        "The label `dra.gpu/offered-by` of a node says who may offer its GPUs; it has one value, so never both. Wait "
        "for each command to end well before the next one. If one does not, go no further, and take the way back."
    )
    yield ""
    yield "The driver is installed with these values until the end (`values-cutover.yaml`):"
    yield ""
    yield from yaml_block(plan.values)
    yield from _stages(plan.forward)


def way_back(plan: Plan | None) -> Iterator[str]:
    if plan is None or not plan.back:
        return
    yield (
        "From wherever you are, for the nodes that you have begun with. Nothing else has to be undone: templates and "
        "classes that nobody names do no harm."
    )
    yield from _stages(plan.back)


def _stages(stages: Sequence[Stage]) -> Iterator[str]:
    for stage in stages:
        yield ""
        yield f"### {stage.title}"
        yield ""
        for index, step in enumerate(stage.steps, 1):
            note = f" {step.note}" if step.note else ""
            yield f"{index}. {step.what}{note}"
            if step.commands:
                yield ""
                yield "    ```sh"
                yield from (f"    {command}" for command in step.commands)
                yield "    ```"
                yield ""
