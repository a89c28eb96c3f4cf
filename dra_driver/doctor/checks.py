"""All checks of a cluster, in the order in which they are answered: what others need comes first."""

from dataclasses import replace

from dra_driver.api.meta import JsonObject
from dra_driver.doctor import (
    access,
    claims,
    configuration,
    conflicts,
    control,
    domains,
    gpus,
    installation,
    nodes,
    server,
    slices,
)
from dra_driver.doctor.cluster import ClusterView
from dra_driver.doctor.findings import Check


def cluster_checks(
    definitions: tuple[JsonObject, ...], classes: tuple[JsonObject, ...], class_errors: configuration.JudgeClass
) -> tuple[Check[ClusterView], ...]:
    """`definitions` are the CustomResourceDefinitions, `classes` the DeviceClasses that ship with this release;
    `class_errors` says what is wrong with any class."""
    return (
        server.VERSION,
        server.API,
        server.FEATURES,
        access.YOURS,
        installation.INSTALLED,
        *_of_an_installation(server.definitions_check(definitions), nodes.COVERED),
        nodes.KUBELETS,
        nodes.KUBELET_GATES,
        nodes.RUNTIMES,
        *_of_an_installation(
            nodes.PODS,
            nodes.REGISTERED,
            nodes.INVENTORIES,
            gpus.DRIVERS,
            gpus.HEALTH,
            gpus.CONTAINERS,
            gpus.LEFTOVERS,
            gpus.LIMITATIONS,
            control.CONTROLLER_RUNS,
            control.LEADER,
            control.VERSIONS,
            access.THEIRS,
            slices.PUBLISHED,
            slices.COMPLETE,
            slices.STALE,
            slices.WRITERS,
            configuration.classes_check(classes, class_errors),
            configuration.POLICY,
            configuration.WEBHOOK,
            configuration.ADMISSION,
        ),
        conflicts.DEVICE_PLUGINS,
        *_of_an_installation(conflicts.OTHERS, conflicts.OPERATOR),
        claims.ALLOCATED,
        claims.DELETED,
        *_of_an_installation(claims.EVENTS, domains.DOMAINS, domains.NODES),
    )


def _of_an_installation(*checks: Check[ClusterView]) -> tuple[Check[ClusterView], ...]:
    """These have nothing to ask where nothing of the driver is there."""
    return tuple(replace(check, moot=installation.why_moot) for check in checks)
