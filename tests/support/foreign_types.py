"""Types of others that the chart has objects of where a cluster serves them: definitions that take anything."""

from support.helm import Object

_SCC = ("security.openshift.io", "v1", "securitycontextconstraints", "SecurityContextConstraints", "Cluster")
_MONITOR = ("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor", "Namespaced")
_SERVICE_MONITOR = ("monitoring.coreos.com", "v1", "servicemonitors", "ServiceMonitor", "Namespaced")
_RULE = ("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule", "Namespaced")


def definition(group: str, version: str, plural: str, kind: str, scope: str) -> Object:
    """A CustomResourceDefinition that takes anything."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": scope,
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


_CERTIFICATE = ("cert-manager.io", "v1", "certificates", "Certificate", "Namespaced")
_ISSUER = ("cert-manager.io", "v1", "issuers", "Issuer", "Namespaced")
EVERYTHING_SERVED = tuple(
    definition(*kind) for kind in (_SCC, _MONITOR, _SERVICE_MONITOR, _RULE, _CERTIFICATE, _ISSUER)
)
