"""What is wrong with a DeviceClass that is in a cluster, for those who look at many objects there. Pure."""

import json

from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.checking.check import check
from dra_driver.checking.findings import Severity, sentence
from dra_driver.checking.knowledge import Knowledge
from dra_driver.names import COMPUTE_DOMAIN_DRIVER


def class_errors(name: str, spec: JsonObject, driver: str) -> tuple[str, ...]:
    """Of a class for devices of `driver`, or of this project for ComputeDomains; none for others. Which devices there
    are does not matter."""
    if not any(f"{quote}{ours}" in json.dumps(spec) for ours in (driver, COMPUTE_DOMAIN_DRIVER) for quote in "\"'"):
        return ()
    obj = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
    found = check(read_documents(json.dumps(obj), name), Knowledge(driver=driver))
    return tuple(sentence(one) for one in found if one.severity is Severity.ERROR)
