"""`dractl get nodes|devices|claims`: who uses which GPU, and what is free."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import NODE_INVENTORIES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.cli.output import Cell, Format, OutputOption, Sheet, Shown, duration, gibibytes, show
from dra_driver.cli.session import ContextOption, KubeconfigOption, ask
from dra_driver.cli.usage import PublishedDevice, claim_name, published_devices
from dra_driver.kube.client import Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER

app = typer.Typer(help="Show nodes, devices or claims, and who uses what.", no_args_is_help=True)

DriverOption = Annotated[list[str], typer.Option("--driver", help="Drivers to show; may be given more than once.")]
_DRIVERS = [GPU_DRIVER, COMPUTE_DOMAIN_DRIVER]


async def _claims(kube: Kube, namespace: str | None = None) -> list[ResourceClaim]:
    return [ResourceClaim.of(item) for item in (await kube.list(RESOURCE_CLAIMS, namespace=namespace)).items]


async def _devices(kube: Kube, drivers: list[str]) -> tuple[PublishedDevice, ...]:
    slices = [ResourceSlice.of(item) for item in (await kube.list(RESOURCE_SLICES)).items]
    return published_devices(slices, await _claims(kube), drivers)


async def _inventories(kube: Kube) -> list[NodeInventory]:
    return [NodeInventory.of(item) for item in (await kube.list(NODE_INVENTORIES)).items]


@app.command("nodes")
def nodes(
    output: OutputOption = Format.TABLE, kubeconfig: KubeconfigOption = None, context: ContextOption = None
) -> None:
    """Nodes with GPUs: hardware, health, and how many devices are free."""

    async def question(kube: Kube) -> tuple[list[NodeInventory], tuple[PublishedDevice, ...]]:
        return await _inventories(kube), await _devices(kube, [GPU_DRIVER])

    show(_node_sheet(*ask(kubeconfig, context, question)), output)


def _node_sheet(inventories: list[NodeInventory], devices: tuple[PublishedDevice, ...]) -> Sheet:
    rows: list[tuple[Cell, ...]] = []
    for inventory in sorted(inventories, key=lambda item: item.spec.node_name):
        node, summary = inventory.spec.node_name, inventory.spec.summary
        here = [device for device in devices if device.node == node]
        free = f"{sum(device.free for device in here)}/{len(here)}"
        clique = None if summary.clique == "-" else summary.clique
        product = Shown(summary.product.removeprefix("NVIDIA "), summary.product)
        problems = tuple(f"{problem.subject}: {problem.reason}" for problem in inventory.spec.problems)
        rows.append((node, summary.gpus, summary.healthy, free, product, summary.driver, clique, problems))
    return Sheet(
        ("NODE", "GPUS", "HEALTHY", "FREE", "PRODUCT", "DRIVER", "CLIQUE", "PROBLEMS"),
        ("node", "gpus", "healthy", "free", "product", "driver", "clique", "problems"),
        tuple(rows),
        "No node has reported GPUs. Is the node plugin running? kubectl get nodeinventories shows what it wrote.",
    )


@app.command("devices")
def devices(
    output: OutputOption = Format.TABLE,
    free: Annotated[bool, typer.Option("--free", help="Only devices that nobody uses.")] = False,
    driver: DriverOption = _DRIVERS,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Published devices, and the claims that have them."""
    found = ask(kubeconfig, context, lambda kube: _devices(kube, driver))
    show(_device_sheet([device for device in found if device.free or not free]), output)


def _device_sheet(found: list[PublishedDevice]) -> Sheet:
    return Sheet(
        ("NODE", "DEVICE", "TYPE", "PRODUCT", "MEMORY", "USED BY", "PODS"),
        ("node", "device", "type", "product", "memoryBytes", "usedBy", "pods"),
        tuple(
            (
                device.node,
                device.id.device,
                device.attribute("type"),
                device.attribute("productName"),
                Shown(gibibytes(device.memory_bytes()), device.memory_bytes()),
                Shown(", ".join(device.users) or "free", list(device.users)),
                tuple(sorted({pod for holder in device.holders for pod in holder.pods})),
            )
            for device in found
        ),
        "No devices are published, or none match.",
    )


@app.command("claims")
def claims(
    output: OutputOption = Format.TABLE,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="One namespace; default: all.", show_default=False)
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """ResourceClaims: what each asked for, what it got, and for whom."""
    found = ask(kubeconfig, context, lambda kube: _claims(kube, namespace))
    show(_claim_sheet(found, datetime.now(UTC)), output)


def _claim_sheet(found: list[ResourceClaim], now: datetime) -> Sheet:
    return Sheet(
        ("NAMESPACE", "CLAIM", "STATE", "DEVICES", "PODS", "AGE"),
        ("namespace", "claim", "state", "devices", "pods", "created"),
        tuple(_claim_row(claim, now) for claim in sorted(found, key=claim_name)),
        "No ResourceClaims.",
    )


def _claim_row(claim: ResourceClaim, now: datetime) -> tuple[Cell, ...]:
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else []
    state = "pending" if allocation is None else "in use" if claim.status.reserved_for else "allocated"
    created = claim.metadata.creation_timestamp
    age = duration((now - datetime.fromisoformat(created)).total_seconds()) if created else "-"
    return (
        claim.metadata.namespace or "-",
        claim.metadata.name,
        "deleting" if claim.metadata.deletion_timestamp else state,
        tuple(f"{result.pool}/{result.device}" for result in results),
        tuple(user.name for user in claim.status.reserved_for),
        Shown(age, created),
    )
