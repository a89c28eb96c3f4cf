"""What checks of the node have found already, as proofs. Pure."""

from collections.abc import Iterable

from dra_driver.doctor.findings import Diagnosis, Verdict
from dra_driver.doctor.proofs import Proof, failed, not_tried, passed

_CHOSEN = "off"
"""Trouble of the check `node-hook`: the configuration switches the hook off."""


def readable_cdi(findings: Iterable[Diagnosis]) -> Proof:
    """From the check `node-runtime`: whether the runtime reads what the plugin writes."""
    results = [item for item in findings if item.check == "node-runtime"]
    for verdict in (Verdict.PROBLEM, Verdict.UNKNOWN, Verdict.WARNING):
        for finding in results:
            if finding.verdict is verdict:
                words = f"{finding.about}: {finding.sentence}" if finding.about else finding.sentence
                if verdict is Verdict.PROBLEM:
                    return failed(words, finding.fix)
                return not_tried(words, finding.fix) if verdict is Verdict.UNKNOWN else passed(words)
    return passed(results[0].sentence) if results else not_tried("the container runtime was not checked")


def hook_mode(findings: Iterable[Diagnosis]) -> Proof:
    """From the check `node-hook`: containers without hooks are a failure, unless the configuration says so."""
    finding = next((item for item in findings if item.check == "node-hook"), None)
    if finding is None:
        return not_tried("the hook program was not checked")
    if finding.verdict is Verdict.OK:
        return passed(finding.sentence)
    return not_tried(finding.sentence) if finding.trouble == _CHOSEN else failed(finding.sentence, finding.fix)
