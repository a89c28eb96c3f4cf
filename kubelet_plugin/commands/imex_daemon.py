"""The supervisor of an IMEX daemon, in a pod of its own: settings, the domain's status, nvidia-imex, orderly stop."""

# isort: off
import dra_driver.runtime.lean  # noqa: F401 - before anything else imports libraries

# isort: on
import asyncio
import os
import signal
import sys

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import COMPUTE_DOMAINS
from dra_driver.domains.peers import knows_names
from dra_driver.kube.client import Kube, endpoint_from
from dra_driver.kube.watch import Mirror
from dra_driver.runtime import memory
from dra_driver.runtime.logs import configure_logging
from dra_driver.runtime.tasks import forever, run_service, until_signal
from kubelet_plugin.hardware.driver_root import kernel_module_version
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.imex.probe import ProbeFolder
from kubelet_plugin.imex.settings import ImexSettings, read_settings
from kubelet_plugin.imex.supervisor import SupervisedProgram, Supervisor

PROGRAM = "nvidia-imex"


def main() -> None:
    memory.limit()
    settings = read_settings(sys.argv[1:], os.environ)
    configure_logging(settings.log_level, settings.log_format)
    # nvidia-imex inherits this until it has a handler of its own: a signal that comes too early must not end it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.exit(run_service(run(settings)))


async def run(settings: ImexSettings) -> None:
    """The supervisor's whole life. Ends with Stopped after a signal; the IMEX daemon has ended then."""
    program = SupervisedProgram((PROGRAM, "-c", str(ProbeFolder(settings.folder).config)))
    by_name = knows_names(kernel_module_version(HostFiles(settings.host_root)))
    supervisor = Supervisor(settings, program, by_name=by_name)
    async with (
        Kube(endpoint_from(settings.kubeconfig), user_agent="gpu-dra-imex-daemon") as kube,
        supervisor.serving(),
        asyncio.TaskGroup() as tasks,
    ):
        domain = Mirror(
            kube,
            COMPUTE_DOMAINS,
            keep=ComputeDomain.or_why_not,
            namespace=settings.namespace,
            field_selector=f"metadata.name={settings.name}",
            on_change=supervisor.saw,
        )
        tasks.create_task(forever("the domain", domain.run))
        tasks.create_task(forever("the peers", supervisor.run))
        tasks.create_task(forever(PROGRAM, program.run))
        memory.settle()
        await until_signal()
