"""Rights on DaemonSets, which the controller creates for ComputeDomains."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs.from_code.rights.line import DAEMON_SETS, FINALIZER, RBAC, Account, Changes, Line

# One line is one statement; the formatter would spread each over many lines.
# fmt: off


_POD = "spec/template/spec"
_CONTAINER = f"{_POD}/containers/0"


def _of(path: str, values: Mapping[str, Any]) -> tuple[Changes, ...]:
    return tuple({f"{path}/{name}": value} for name, value in values.items())


def daemon_sets() -> Iterator[Line]:
    me, daemons = Account.CONTROLLER, "gpu-dra/daemons"
    yield Line(me, "list watch", DAEMON_SETS, "in the driver's namespace", "daemons of ComputeDomains", on="gpu-dra/")
    yield Line(me, "create delete", DAEMON_SETS, "of ComputeDomains, as created", "daemons of ComputeDomains",
        on=daemons, changes=({}, {f"{_CONTAINER}/resources/limits": None},
        {f"{_CONTAINER}/args/3": "--log-level=debug"}))
    yield Line(me, "create delete", DAEMON_SETS, "of others, including the plugin's", by="daemons", on="gpu-dra/plugin")
    yield Line(me, "create list delete", DAEMON_SETS, "in other namespaces", by=RBAC, on="default/theirs")
    yield Line(me, "create", DAEMON_SETS, "of ComputeDomains, with anything else in their pods", by="daemons",
        on=daemons, changes=(*_WORSE_SETS, *_of(_POD, _WORSE_PODS), *_WORSE_CONTEXTS, *_WORSE_CONTAINERS))
    yield Line(me, "create", DAEMON_SETS, "of ComputeDomains, with more resources", by="daemons", on=daemons,
        by_quantity=True, changes=({f"{_CONTAINER}/resources/requests/cpu": "64"},
        {f"{_CONTAINER}/resources/limits/memory": "64Gi"}))


_WORSE_SETS: tuple[Changes, ...] = (
    FINALIZER,
    {"metadata/name": "miner"},
    {"spec/template/metadata/annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=all"}},
    {"spec/template/metadata/labels/app.kubernetes.io~1name": "other"},
)
_EXPRESSION = {"key": "a", "operator": "Exists"}
_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [_EXPRESSION]}]}
}
_SPREAD = {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}
_WORSE_PODS: Mapping[str, Any] = {
    "serviceAccountName": "gpu-dra-driver-kubelet-plugin",
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "hostUsers": False,
    "shareProcessNamespace": True,
    "volumes/3": {"name": "host", "hostPath": {"path": "/"}},
    "volumes/4": {"name": "secret", "secret": {"secretName": "a"}},
    "volumes/0/emptyDir/medium": "Memory",
    "volumes/0/emptyDir/sizeLimit": None,
    "initContainers": [{"name": "a", "image": "a"}],
    "containers/1": {"name": "b", "image": "b"},
    "runtimeClassName": "nvidia",
    "resourceClaims/0/resourceClaimTemplateName": "gpus",
    "priorityClassName": "system-cluster-critical",
    "tolerations/0/key": "a",
    "nodeSelector": None,
    "nodeSelector/zone": "a",
    "nodeName": "node-1",
    "affinity": {"nodeAffinity": _AFFINITY},
    "topologySpreadConstraints": [_SPREAD],
    "schedulerName": "other",
    "imagePullSecrets": [{"name": "others"}],
    "resources": {"requests": {"cpu": "64"}},
    "dnsConfig": {"nameservers": ["10.0.0.1"]},
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
    "hostname": "a",
    "subdomain": "a",
    "setHostnameAsFQDN": True,
    "preemptionPolicy": "Never",
    "readinessGates": [{"conditionType": "a"}],
    "schedulingGates": [{"name": "a"}],
    "os": {"name": "linux"},
    "overhead": {"cpu": "1"},
    "priority": 1000,
    "resourceClaims/0": {"name": "daemon", "resourceClaimName": "of-somebody"},
    "tolerations/0/effect": "NoSchedule",
}
_WORSE_CONTEXTS: tuple[Changes, ...] = (
    {f"{_CONTAINER}/securityContext/procMount": "Unmasked", f"{_POD}/hostUsers": False},
    {f"{_CONTAINER}/securityContext/privileged": True, f"{_CONTAINER}/securityContext/allowPrivilegeEscalation": None},
    *_of(
        f"{_POD}/securityContext",
        {
            "runAsUser": 0, "runAsGroup": 0, "fsGroup": 0, "supplementalGroups": [0],
            "seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"}, "sysctls": [{"name": "kernel.msgmax", "value": "1"}],
            "fsGroupChangePolicy": "Always", "supplementalGroupsPolicy": "Merge", "runAsNonRoot": False,
            "windowsOptions": {"runAsUserName": "a"},
        },
    ),
    *_of(
        f"{_CONTAINER}/securityContext",
        {
            "allowPrivilegeEscalation": True, "capabilities/add/1": "SYS_ADMIN",
            "capabilities/drop": ["KILL"], "readOnlyRootFilesystem": False, "runAsGroup": 0,
            "runAsNonRoot": False, "windowsOptions": {"runAsUserName": "a"},
            "seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"},
        },
    ),
)
_REFERENCE = {"name": "others", "key": "password"}
_SHELL = {"exec": {"command": ["sh"]}}
_WORSE_CONTAINERS = _of(
    _CONTAINER,
    {
        "image": "other",
        "securityContext": None,
        "command": ["/bin/sh"],
        "args/5": "--log-file=/x",
        "env/2": {"name": "KEY", "valueFrom": {"secretKeyRef": _REFERENCE}},
        "env/3": {"name": "KEY", "valueFrom": {"configMapKeyRef": _REFERENCE}},
        # NVIDIA's runtime, if it is the node's default, gives such a container all GPUs.
        "env/4": {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        "envFrom": [{"secretRef": {"name": "others"}}],
        "ports": [{"containerPort": 80, "hostPort": 80}],
        "lifecycle": {"postStart": _SHELL},
        "workingDir": "/",
        "livenessProbe/exec/command": ["sh"],
        "startupProbe/exec/command": ["sh"],
        "startupProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}},
        "livenessProbe": {"tcpSocket": {"port": 80}},
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "readinessProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}},
        "resources/limits/nvidia.com~1gpu": "8",
        "resources/requests/ephemeral-storage": "1Gi",
    },
)
