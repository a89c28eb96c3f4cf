"""Values that people give the chart: one variant for each thing that can be chosen, and a strategy for combinations."""

from typing import Any

from hypothesis import strategies as st

type Values = dict[str, Any]

POLICY: Values = {
    "publish": [{"nodes": {"labelSelector": {"matchLabels": {"pool": "ml"}}}, "gpus": {"products": ["NVIDIA H100*"]}}],
    "withhold": [{"nodes": {"names": ["build-*"]}}, {"gpus": {"uuids": ["GPU-5a7b8d0e-*"]}}],
    "attributes": [{"values": {"rack": "r1", "tier": 2, "spot": False, "example.com/firmware": {"version": "1.4.0"}}}],
    "mig": [{"mode": "Dynamic", "profiles": ["1g.*", "3g.40gb"], "computeInstances": ["1c.3g.40gb"]}],
    "sharing": [
        {"gpus": {"products": ["Tesla T4"]}, "strategy": "TimeSlicing", "replicas": 4, "interval": "Long"},
        {"devices": "mig", "profiles": ["1g.10gb"], "strategy": "MPS", "capacity": ["memory", "cores"]},
        {"nodes": {"names": ["free-*"]}, "strategy": "TimeSlicing", "unlimited": True},
    ],
    "passthrough": [{"nodes": {"labelSelector": {"matchExpressions": [{"key": "virt", "operator": "Exists"}]}}}],
    "health": {"ignoreXids": [94], "escalateXids": [109], "evict": False, "validate": True},
}

EXTRA_CLASS: Values = {
    "name": "big.gpu.nvidia.com",
    "labels": {"team": "ml"},
    "spec": {
        "extendedResourceName": "example.com/big-gpu",
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
        "config": [
            {
                "opaque": {
                    "driver": "gpu.nvidia.com",
                    "parameters": {
                        "apiVersion": "resource.nvidia.com/v1beta1",
                        "kind": "GpuConfig",
                        "sharing": {"strategy": "TimeSlicing"},
                    },
                }
            }
        ],
    },
}

VARIANTS: dict[str, Values] = {
    "defaults": {},
    "names": {"nameOverride": "gpus", "commonLabels": {"team": "ml"}},
    "full-name": {"fullnameOverride": "a-name-that-is-much-longer-than-any-name-should-be-and-goes-on"},
    "image": {
        "image": {"repository": "registry.example.com:5000/x/gpu-dra-driver", "tag": "1.2", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
    },
    "image-digest": {"image": {"digest": "sha256:" + "0" * 64}},
    "driver-name": {"driverName": "gpu.example.com"},
    "publisher-node": {"publisher": "node"},
    "policy": {"policy": POLICY},
    "logs": {"logLevel": "debug", "logFormat": "console", "debugPages": True},
    "dashboard": {"metrics": {"dashboard": True, "dashboardLabels": {"grafana": "yes"}}},
    "no-device-status": {"featureGates": {"DeviceStatus": False}},
    "feature-gates": {"featureGates": {"MPSSupport": False, "MigExtendedResources": True}},
    "no-crds": {"crds": {"install": False}},
    "keep-crds": {"crds": {"keep": True}},
    "no-classes": {"deviceClasses": {"install": False}},
    "no-extended-resource": {"deviceClasses": {"extendedResources": {"gpu.nvidia.com": ""}}},
    "extended-resources": {
        "deviceClasses": {
            "extendedResources": {"mig.nvidia.com": "example.com/mig", "gpu.nvidia.com": "example.com/gpu"},
        }
    },
    "no-mig-classes": {"featureGates": {"MigProfileClasses": False}},
    "extra-class": {"deviceClasses": {"extra": [EXTRA_CLASS]}},
    "places": {
        "kubeletPlugin": {
            "kubeletRoot": "/var/lib/k0s/kubelet",
            "cdiRoot": "/etc/cdi",
            "driverRoot": "/run/nvidia/driver",
            "cdiHook": "/usr/bin/nvidia-cdi-hook",
            "fabricManager": "/run/nvidia-fabricmanager/socket",
        }
    },
    "times": {"kubeletPlugin": {"discoveryInterval": 0.5, "cleanupInterval": 60, "terminationGracePeriodSeconds": 5}},
    "validation": {"kubeletPlugin": {"validationCommand": "/bin/sh -c 'exit 0'"}},
    "ui": {"ui": {"enabled": True}, "networkPolicy": {"install": True}},
    "ui-https": {
        "ui": {
            "enabled": True,
            "tlsSecret": "ui-tls",
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
        },
        "networkPolicy": {"install": True, "uiFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
    },
    "simulated": {"kubeletPlugin": {"simulate": "dgx-h100:1"}},
    "unprivileged": {
        "kubeletPlugin": {
            "privileged": False,
            "runtimeClassName": "nvidia",
            "podAnnotations": {"cdi.k8s.io/gpus": "nvidia.com/gpu=all"},
        }
    },
    "pods": {
        "kubeletPlugin": {
            "httpPort": 9100,
            "podLabels": {"a": "b"},
            "priorityClassName": "",
            "resources": {"limits": {"memory": "1Gi", "cpu": 1}},
            "nodeSelector": {"pool": "gpu"},
            "affinity": {"nodeAffinity": None},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "controller": {
            "replicas": 3,
            "workers": 4,
            "httpPort": 9101,
            "podLabels": {"a": "b"},
            "podAnnotations": {"c": "d"},
            "priorityClassName": "",
            "resources": {},
            "nodeSelector": {"role": "infra"},
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "tolerations": [],
            "leaderElection": {"leaseDuration": 60, "renewDeadline": 40, "retryPeriod": 5},
        },
    },
    "accounts": {"serviceAccounts": {"kubeletPlugin": "plugin", "controller": "controller", "annotations": {"a": "b"}}},
    "no-policies": {"admissionPolicies": {"install": False}},
    "webhook": {"webhook": {"install": True}, "networkPolicy": {"install": True}},
    "webhook-cert-manager": {
        "webhook": {
            "install": True,
            "failurePolicy": "Ignore",
            "timeout": 3,
            "exemptNamespaces": ["kube-system", "monitoring"],
            "certificates": "cert-manager",
            "issuerRef": {"name": "company", "kind": "ClusterIssuer"},
            "port": 8443,
            "drain": 5,
        }
    },
    "webhook-own-authority": {"webhook": {"install": True, "certificates": "cert-manager"}},
    "network": {"networkPolicy": {"install": True}, "tracing": {"endpoint": "http://otel.traces:4317"}},
    "network-narrow": {
        "networkPolicy": {
            "install": True,
            "metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
            "webhookFrom": [{"ipBlock": {"cidr": "10.0.0.0/28"}}],
            "apiServerCIDRs": ["10.0.0.1/32", "fd00::1/128"],
            "apiServerPorts": [6443],
        }
    },
    "no-monitors": {
        "metrics": {"podMonitors": "never", "alerts": "never"},
        "openshift": {"securityContextConstraints": "never"},
    },
    "service-monitors": {"metrics": {"serviceMonitors": "auto", "labels": {"release": "prometheus"}}},
    "priority-quota": {"priorityClassQuota": True},
    "no-budget": {"podDisruptionBudget": {"install": False}},
    "no-cleanup": {"cleanup": {"install": False}},
    "test": {"test": {"deviceClassName": "mig.nvidia.com", "tolerations": []}},
    "part-of-another-chart": {"global": {"anything": {"at": "all"}}},
}
"""By name."""


def merged(first: Values, second: Values) -> Values:
    """Both; the second wins, and its null takes away, as in Helm."""
    result = dict(first)
    for key, value in second.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def combinations() -> st.SearchStrategy[Values]:
    """Any of the variants together."""

    def all_of(names: list[str]) -> Values:
        values: Values = {}
        for name in names:
            values = merged(values, VARIANTS[name])
        return values

    joined = st.lists(st.sampled_from(sorted(VARIANTS)), min_size=2, max_size=7, unique=True).map(all_of)
    return joined.filter(_go_together)


def _go_together(values: Values) -> bool:
    """The webhook is a part of the controller, and what a policy asks for must be switched on; the chart says so."""
    policy_asks = "policy" in values and values.get("featureGates", {}).get("MPSSupport") is False
    gates = values.get("featureGates", {})
    extended = gates.get("MigExtendedResources") is True and gates.get("MigProfileClasses") is False
    return not (policy_asks or extended or (values.get("publisher") == "node" and "webhook" in values))
