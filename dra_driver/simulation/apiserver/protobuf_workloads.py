"""Field numbers of what `kubectl create` sends in protobuf beside what `protobuf.py` has: workloads, services, roles.

Pods have the fields that `kubectl create job --from` takes over from a CronJob with claims. Of others, `protobuf.py`
refuses what it does not know, so nothing is lost silently.
"""

from typing import Any

type Shape = dict[int, tuple[str, Any]]


def shape(**fields: int | tuple[int, Any]) -> Shape:
    """Fields by number: a number alone is that of a string."""
    pairs = {name: (field, "str") if isinstance(field, int) else field for name, field in fields.items()}
    return {number: (name, form) for name, (number, form) in pairs.items()}


def workload_shapes(metadata: Any, toleration: Any, inline: Any) -> dict[str, Shape]:
    """By kind. `metadata` and `toleration` are shapes, `inline` makes a message whose fields are the outer object's."""
    requirement = shape(key=1, operator=2, values=(3, ["str"]))
    selector = shape(matchLabels=(1, "map"), matchExpressions=(2, [requirement]))
    reference = inline(shape(name=1))
    variable = shape(name=1, value=2, valueFrom=(3, shape(fieldRef=(1, shape(apiVersion=1, fieldPath=2)))))
    resources = shape(limits=(1, "quantities"), requests=(2, "quantities"), claims=(3, [shape(name=1, request=2)]))
    security = shape(
        privileged=(2, "bool"),
        runAsUser=(4, "int"),
        runAsNonRoot=(5, "bool"),
        readOnlyRootFilesystem=(6, "bool"),
        allowPrivilegeEscalation=(7, "bool"),
        runAsGroup=(8, "int"),
    )
    mount = shape(name=1, readOnly=(2, "bool"), mountPath=3, subPath=4)
    container = shape(
        name=1,
        image=2,
        command=(3, ["str"]),
        args=(4, ["str"]),
        workingDir=5,
        ports=(6, [shape(name=1, hostPort=(2, "count"), containerPort=(3, "int"), protocol=4)]),
        env=(7, [variable]),
        resources=(8, resources),
        volumeMounts=(9, [mount]),
        terminationMessagePath=13,
        imagePullPolicy=14,
        securityContext=(15, security),
        stdin=(16, "flag"),
        stdinOnce=(17, "flag"),
        tty=(18, "flag"),
        terminationMessagePolicy=20,
    )
    sources = shape(
        hostPath=(1, shape(path=1, type=2)),
        emptyDir=(2, shape(medium=1)),
        secret=(6, shape(secretName=1, defaultMode=(3, "int"), optional=(4, "bool"))),
        persistentVolumeClaim=(10, shape(claimName=1, readOnly=(2, "flag"))),
        configMap=(19, {1: ("", reference), 3: ("defaultMode", "int"), 4: ("optional", "bool")}),
    )
    pod = shape(
        volumes=(1, [{1: ("name", "str"), 2: ("", inline(sources))}]),
        containers=(2, [container]),
        restartPolicy=3,
        terminationGracePeriodSeconds=(4, "int"),
        activeDeadlineSeconds=(5, "int"),
        dnsPolicy=6,
        nodeSelector=(7, "map"),
        serviceAccountName=8,
        serviceAccount=9,
        nodeName=10,
        hostNetwork=(11, "flag"),
        hostPID=(12, "flag"),
        hostIPC=(13, "flag"),
        securityContext=(14, shape(runAsUser=(2, "int"), runAsNonRoot=(3, "bool"), runAsGroup=(6, "int"))),
        imagePullSecrets=(15, [shape(name=1)]),
        hostname=16,
        subdomain=17,
        schedulerName=19,
        initContainers=(20, [container]),
        automountServiceAccountToken=(21, "bool"),
        tolerations=(22, [toleration]),
        priorityClassName=24,
        priority=(25, "int"),
        runtimeClassName=29,
        enableServiceLinks=(30, "bool"),
        preemptionPolicy=31,
        resourceClaims=(39, [shape(name=1, resourceClaimName=3, resourceClaimTemplateName=4)]),
    )
    template = shape(metadata=(1, metadata), spec=(2, pod))
    job = shape(
        parallelism=(1, "int"),
        completions=(2, "int"),
        activeDeadlineSeconds=(3, "int"),
        selector=(4, selector),
        manualSelector=(5, "bool"),
        template=(6, template),
        backoffLimit=(7, "int"),
        ttlSecondsAfterFinished=(8, "int"),
        completionMode=9,
        suspend=(10, "bool"),
        podReplacementPolicy=14,
    )
    rule = shape(
        verbs=(1, ["str"]),
        apiGroups=(2, ["str"]),
        resources=(3, ["str"]),
        resourceNames=(4, ["str"]),
        nonResourceURLs=(5, ["str"]),
    )
    binding = shape(
        metadata=(1, metadata),
        subjects=(2, [shape(kind=1, apiGroup=2, name=3, namespace=4)]),
        roleRef=(3, shape(apiGroup=1, kind=2, name=3)),
    )
    port = shape(name=1, protocol=2, port=(3, "int"), targetPort=(4, "number or name"), nodePort=(5, "count"))
    service = shape(
        ports=(1, [port]),
        selector=(2, "map"),
        clusterIP=3,
        type=4,
        externalName=10,
        publishNotReadyAddresses=(13, "flag"),
    )
    cron_job = shape(
        schedule=1,
        startingDeadlineSeconds=(2, "int"),
        concurrencyPolicy=3,
        suspend=(4, "bool"),
        jobTemplate=(5, shape(metadata=(1, metadata), spec=(2, job))),
        successfulJobsHistoryLimit=(6, "int"),
        failedJobsHistoryLimit=(7, "int"),
        timeZone=8,
    )
    deployment = shape(
        replicas=(1, "int"), selector=(2, selector), template=(3, template), strategy=(4, shape(type=1)),
        minReadySeconds=(5, "count"), revisionHistoryLimit=(6, "int"), progressDeadlineSeconds=(9, "int"),
    )  # fmt: skip
    budget = shape(minAvailable=(1, "number or name"), selector=(2, selector), maxUnavailable=(3, "number or name"))
    roles = shape(metadata=(1, metadata), rules=(2, [rule]))
    specs = {
        "Deployment": deployment,
        "Job": job,
        "CronJob": cron_job,
        "Service": service,
        "ResourceQuota": shape(hard=(1, "quantities"), scopes=(2, ["str"])),
        "PodDisruptionBudget": budget,
    }
    return {
        **{kind: shape(metadata=(1, metadata), spec=(2, spec), status=(3, "unread")) for kind, spec in specs.items()},
        **dict.fromkeys(("Role", "ClusterRole"), roles),
        **dict.fromkeys(("RoleBinding", "ClusterRoleBinding"), binding),
        "PriorityClass": shape(
            metadata=(1, metadata), value=(2, "int"), globalDefault=(3, "flag"), description=4, preemptionPolicy=5
        ),
    }
