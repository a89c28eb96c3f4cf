"""What becomes of all workloads at once on the nodes that are described, as Markdown. Pure."""

from collections.abc import Iterator, Sequence

from dra_driver.migration.report_text import counted, listed, named, sentence, table, yaml_block
from dra_driver.migration.together import Standing, Together

_HOW = (
    "First those that few nodes suit, then those that ask for most, each on the first node that has room; the device "
    "plugin's way was counted in the same order. Another order may end otherwise. CPU, memory, and pods that are not "
    "among these workloads are not looked at."
)


def all_together(found: Together | None) -> Iterator[str]:
    if found is None or not found.standings:
        return
    yield f"On {found.title}. {sums(found)}"
    yield ""
    yield _HOW
    short = [one for one in found.standings if one.fit is None or one.fit < one.pods]
    if short:
        yield ""
        yield from table(("Workload", "Pods", "With devices", "Before", "Why not all"), map(_row, _worst_first(short)))
    if found.needs is not None:
        yield ""
        yield "Rules like these were taken for granted, beyond the policy of this report:"
        yield ""
        yield from yaml_block(found.needs)
    if found.left_out:
        yield ""
        yield "Nodes that are not counted:"
        yield ""
        yield from (f"- {sentence(one)}" for one in found.left_out)


def sums(found: Together) -> str:
    """Two or three sentences."""
    tried = [one for one in found.standings if one.fit is not None]
    pods, fit = sum(one.pods for one in tried), sum(one.fit or 0 for one in tried)
    make = "makes" if len(tried) == 1 else "make"
    parts = [f"{counted(len(tried), 'workload')} {make} {counted(pods, 'pod')}; {fit} of them have devices at a time."]
    known = [one for one in tried if one.before is not None]
    if known:
        before = sum(one.before or 0 for one in known)
        of_known = "" if len(known) == len(tried) else f", of the {counted(len(known), 'workload')} that it counted"
        parts.append(f"The device plugin had room for {before}{of_known}.")
    if lost := [named(one.workload) for one in tried if one.lost]:
        parts.append(f"**Fewer than before: {listed(lost)}.**")
    if late := len(found.standings) - len(tried):
        parts.append(f"{counted(late, 'workload')} not tried.")
    return " ".join(parts)


def _worst_first(standings: Sequence[Standing]) -> list[Standing]:
    return sorted(standings, key=lambda one: (-one.lost, one.fit is None))


def _row(one: Standing) -> tuple[str, ...]:
    before = "not known" if one.before is None else str(one.before)
    fit = "not tried" if one.fit is None else f"**{one.fit}**" if one.lost else str(one.fit)
    return named(one.workload), str(one.pods), fit, before, "; ".join(one.why)
