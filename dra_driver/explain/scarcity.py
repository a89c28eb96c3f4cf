"""In one sentence: why a request finds too few devices on a node. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from dra_driver.allocation.requests import Wanted
from dra_driver.explain.failing import Comparison
from dra_driver.explain.verdicts import HELD, DeviceVerdict, ReasonCode, Sentence, after, joined, nearness


def scarce_sentence(wanted: Wanted, verdicts: Sequence[DeviceVerdict]) -> tuple[ReasonCode, Sentence]:
    meant = [verdict for verdict in verdicts if verdict.is_meant]
    if not meant:
        return _nothing_meant(wanted, verdicts)
    able = [device_verdict for device_verdict in meant if device_verdict.code is ReasonCode.FITS]
    device_verdicts = [device_verdict for device_verdict in meant if device_verdict.code is not ReasonCode.FITS]
    number = len(meant) if wanted.wants_all else wanted.count
    if not device_verdicts:
        text = f'request "{wanted.name}" needs {number} devices, and {_of(len(meant), "matches", "match")} it'
        return ReasonCode.TOO_FEW, Sentence(text)
    code = Counter(device_verdict.code for device_verdict in device_verdicts).most_common(1)[0][0]
    if number == 1 or (len(meant) == 1 and not able):
        return code, _kept_away(device_verdicts)
    needs = "all of" if wanted.wants_all else f"{number} of"
    if number > len(meant):
        needs = f"{number} devices, but has only"
    free = f"{len(able)} free" if able else "none free"
    lead = f'request "{wanted.name}" needs {needs} {len(meant)} that match, {free}; '
    return code, after(lead, _kept_away(device_verdicts))


def _of(number: int, item: str, many: str) -> str:
    return f"only 1 {item}" if number == 1 else f"only {number} {many}"


_LEADS = {
    ReasonCode.IN_USE: "in use by",
    ReasonCode.CAPACITY: "without room left beside",
    ReasonCode.COUNTERS: "without room left beside",
}


def _kept_away(verdicts: Sequence[DeviceVerdict]) -> Sentence:
    """`2 devices in use by team-a/train, 1 tainted gpu.nvidia.com/xid=79`."""
    groups: dict[tuple[ReasonCode, str], list[DeviceVerdict]] = {}
    for verdict in verdicts:
        # Reasons that differ only in the holders form one group.
        text = verdict.text if verdict.code not in _LEADS or not verdict.holders else ""
        groups.setdefault((verdict.code, text), []).append(verdict)
    several = len(groups) > 1
    return joined(
        ", ",
        (
            _group_of_devices(code, text, members, several)
            for (code, text), members in sorted(groups.items(), key=lambda item: -len(item[1]))
        ),
    )


def _group_of_devices(code: ReasonCode, text: str, members: Sequence[DeviceVerdict], several: bool) -> Sentence:
    number = f"{len(members)} " if several or len(members) > 1 else ""
    noun = "device" if len(members) == 1 else "devices"
    if not text:
        holders = tuple(holder for member in members for holder in member.holders)
        # Of counters all devices are short in the same words; of a capacity each has its own rest.
        alike = len(members) == 1 or (code is ReasonCode.COUNTERS and len({member.scarce for member in members}) == 1)
        scarce = members[0].scarce if alike else None
        lead = f"{scarce}, beside" if scarce is not None else _LEADS[code]
        return Sentence(f"{number}{noun} {lead} {HELD}", (holders,))
    return Sentence(f"{number}{noun} {text}" if number or code is not ReasonCode.TAINT else text)


def _nothing_meant(wanted: Wanted, verdicts: Sequence[DeviceVerdict]) -> tuple[ReasonCode, Sentence]:
    """No device is what the request asks for: how the nearest ones miss it."""
    nearest = max((verdict.code for verdict in verdicts), key=nearness)
    if nearest is ReasonCode.CLASS:
        text = f"no device of class {wanted.device_class.metadata.name} ({_commonest(verdicts)})"
        return nearest, Sentence(text)
    near = [verdict for verdict in verdicts if verdict.code is nearest]
    return nearest, Sentence(f'no device matches request "{wanted.name}": {_commonest(near)}')


_MOST_MISSES = 2
_MOST_VALUES = 3


def _commonest(verdicts: Sequence[DeviceVerdict]) -> str:
    """The two misses that most devices have; those that differ in the device's own value only are one."""
    groups: dict[object, list[DeviceVerdict]] = {}
    for verdict in verdicts:
        comparison = _only_comparison(verdict)
        key = (comparison.name, comparison.sign, comparison.other) if comparison is not None else verdict.text
        groups.setdefault(key, []).append(verdict)
    ordered = sorted(groups.values(), key=lambda members: -len(members))
    texts = [_miss(members) for members in ordered[:_MOST_MISSES]]
    more = len(ordered) - len(texts)
    return ", or ".join(texts) + (f", and {more} more reason{'s' if more > 1 else ''}" if more else "")


def _only_comparison(verdict: DeviceVerdict) -> Comparison | None:
    return verdict.parts[0].comparison if len(verdict.parts) == 1 else None


def _miss(verdicts: Sequence[DeviceVerdict]) -> str:
    """`memory at most 80Gi < 100Gi`; `profile is "1g.10gb", "2g.20gb" or 3 others, not "9g.90gb"`."""
    comparisons = {each.own: each for each in map(_only_comparison, verdicts) if each is not None}
    first = verdicts[0]
    if len(comparisons) < 2:
        return first.text
    results = list(comparisons.values())
    sign, name, other = results[0].sign, results[0].name, results[0].other
    numbers = [(comparison.amount, comparison.own) for comparison in results if comparison.amount is not None]
    if sign in ("<", "<=") and len(numbers) == len(results):
        return f"{name} at most {max(numbers)[1]} {sign} {other}"
    if sign in (">", ">=") and len(numbers) == len(results):
        return f"{name} at least {min(numbers)[1]} {sign} {other}"
    texts = [comparison.own for comparison in results[:_MOST_VALUES]]
    more = len(results) - len(texts)
    values = f"{', '.join(texts)} or {more} other{'s' if more > 1 else ''}" if more else _either(texts)
    return str(replace(results[0], own=values))


def _either(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:-1])} or {texts[-1]}"
