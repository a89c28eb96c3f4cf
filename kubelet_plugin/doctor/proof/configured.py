"""What checks of the node have found already, as proofs. Pure."""

from collections.abc import Iterable

from dra_driver.doctor.findings import Finding, Verdict
from dra_driver.doctor.proofs import Proof, failed, not_tried, passed

_CHOSEN = "off"
"""Trouble of the check `node-hook`: somebody configured to do without."""


def readable_cdi(findings: Iterable[Finding]) -> Proof:
    """From the check `node-runtime`: whether the runtime reads what the plugin writes."""
    found = [one for one in findings if one.check == "node-runtime"]
    for verdict in (Verdict.PROBLEM, Verdict.UNKNOWN, Verdict.WARNING):
        for one in found:
            if one.verdict is verdict:
                words = f"{one.about}: {one.sentence}" if one.about else one.sentence
                if verdict is Verdict.PROBLEM:
                    return failed(words, one.fix)
                return not_tried(words, one.fix) if verdict is Verdict.UNKNOWN else passed(words)
    return passed(found[0].sentence) if found else not_tried("the container runtime was not checked")


def hook_mode(findings: Iterable[Finding]) -> Proof:
    """From the check `node-hook`: containers without hooks are a failure, unless somebody chose that."""
    found = next((one for one in findings if one.check == "node-hook"), None)
    if found is None:
        return not_tried("the hook program was not checked")
    if found.verdict is Verdict.OK:
        return passed(found.sentence)
    return not_tried(found.sentence) if found.trouble == _CHOSEN else failed(found.sentence, found.fix)
