"""What a ClusterPolicy of the GPU Operator runs, and what is to become of each part beside the driver. Pure."""

from collections.abc import Iterator

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import (
    DOUBLE_ALLOCATION,
    MIG_LAYOUT,
    NO_COUNTERPART,
    PLUGIN_SETTING,
    VIRTUAL_MACHINE,
    Severity,
)
from dra_driver.migration.model import Finding, finding, value_at


def parts_of_operator(document: Document, spec: JsonObject) -> Iterator[Finding]:
    """`spec` is that of the ClusterPolicy."""
    for one in _PARTS:
        yield from one(document, spec)


def _device_plugin(document: Document, spec: JsonObject) -> Iterator[Finding]:
    if value_at(spec, ("devicePlugin", "enabled")) is not False:
        message = "the GPU Operator runs the device plugin on all GPU nodes"
        advice = (
            "Label the nodes that go over with `nvidia.com/gpu.deploy.device-plugin: \"false\"`, node by node as the "
            "cut-over plan says; at the end set `spec.devicePlugin.enabled: false`."
        )  # fmt: skip
        yield finding(DOUBLE_ALLOCATION, document, ("spec", "devicePlugin"), message, advice=advice)


def _mig_manager(document: Document, spec: JsonObject) -> Iterator[Finding]:
    manager = value_at(spec, ("migManager", "enabled"))
    if manager is not False and value_at(spec, ("migManager", "config", "name")):
        message = "the MIG manager keeps layouts on nodes with the label nvidia.com/mig.config"
        yield finding(MIG_LAYOUT, document, ("spec", "migManager"), message, severity=Severity.WARNING)
    if value_at(spec, ("migManager", "gpuClientsConfig", "name")):
        message = "the MIG manager stops clients before it changes a layout; the driver changes nothing that is in use"
        yield finding(NO_COUNTERPART, document, ("spec", "migManager", "gpuClientsConfig"), message)


def _cdi(document: Document, spec: JsonObject) -> Iterator[Finding]:
    if value_at(spec, ("cdi", "enabled")) is False:
        message = "CDI is off; the driver hands devices to containers by CDI alone"
        yield finding(
            PLUGIN_SETTING, document, ("spec", "cdi", "enabled"), message, advice="Set `spec.cdi.enabled: true`."
        )


def _gfd(document: Document, spec: JsonObject) -> Iterator[Finding]:
    if value_at(spec, ("gfd", "enabled")) is False:
        message = "GPU Feature Discovery is off: labels of GPUs are old, or somebody else's"
        yield finding(PLUGIN_SETTING, document, ("spec", "gfd", "enabled"), message, advice="See who sets them.")


def _sandbox(document: Document, spec: JsonObject) -> Iterator[Finding]:
    if value_at(spec, ("sandboxWorkloads", "enabled")) is True:
        message = "nodes may be for virtual machines, by the label nvidia.com/gpu.workload.config"
        yield finding(VIRTUAL_MACHINE, document, ("spec", "sandboxWorkloads"), message)


def _exporter(document: Document, spec: JsonObject) -> Iterator[Finding]:
    if value_at(spec, ("dcgmExporter", "enabled")) is not False:
        message = "metrics of dcgm-exporter name the pods of claims only with its DRA support switched on"
        advice = "Set `KUBERNETES_ENABLE_DRA` of dcgm-exporter to true."
        yield finding(
            PLUGIN_SETTING, document, ("spec", "dcgmExporter"), message, advice=advice, severity=Severity.INFO
        )


_PARTS = (_device_plugin, _mig_manager, _cdi, _gfd, _sandbox, _exporter)
