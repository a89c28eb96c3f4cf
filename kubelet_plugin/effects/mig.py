"""Makes and takes back what claims need of MIG: the mode, GPU instances, and compute instances (the MIG devices).

`kubelet_plugin.prepare` enters here through the port of `kubelet_plugin.prepare.holds`. Every step first looks at what
exists: a crash may have left half of it, and an administrator may have changed it. The rules:

* An instance at the expected place that fits is assumed to be this driver's, unless there is evidence against it: the
  journal had recorded the intent, and the place had been free. A UUID that differs from the journal's is such evidence.
* Nothing that another tool or an administrator made is ever destroyed, and MIG mode stays on as long as it is needed
  there.
* If an instance of a claim was destroyed, it is not made again while the claim is prepared, because the claim's
  programs could not use another one. It is made again when the claim is prepared again.
* The mode is switched here only on GPUs that need no reset for it. On other GPUs, an administrator must switch it once,
  or a policy lets the driver do it (`kubelet_plugin.effects.mode_reset`).

Nothing waits inside `NvmlUser.use`: programs that are about to end get a few seconds, between two calls.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress

import structlog

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.nvml_user import NvmlUser
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.mig import LiveComputeInstance, LiveGpuInstance, MigGpu, Mode
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
    Records,
)

_log = structlog.get_logger(__name__)

PAUSES_S = (0.2, 0.5, 1.0, 2.0, 3.0)
"""Between attempts to take something back that is in use: a container's programs need a moment to end."""


class _MigEffect:
    """`sleep` waits between attempts to take something back. Within `paused` no other NVML session of this process is
    open."""

    def __init__(
        self,
        nvml: NvmlUser,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nvml = nvml
        self._paused = paused
        self._sleep = sleep


class MigModes(_MigEffect):
    """Facts: `was`, `on` or `off`."""

    def before(self, hold: MigMode, records: Records) -> Made:
        def look(nvml: Nvml) -> Made:
            return _was(_ready_for_mode(nvml.mig(hold.gpu.uuid), hold.gpu))

        return self._nvml.use(hold.gpu, look)

    def make(self, hold: MigMode, records: Records) -> Made:
        record = records[hold]
        same_boot = record.boot_id == self._nvml.boot_id()

        def switch_on(nvml: Nvml) -> Made:
            gpu = nvml.mig(hold.gpu.uuid)
            mode = _ready_for_mode(gpu, hold.gpu)
            if same_boot and record.state is HoldState.MADE and not mode.on:
                raise _lost("MIG mode", hold.gpu, "switched it off")
            # The mode of a GPU that switches without a reset is gone after a boot: who has it on now, is the question.
            was = record.made if same_boot and record.made.get("was") is not None else _was(mode)
            if not mode.on:
                _switch(gpu, hold.gpu, on=True)
            return record.made.with_facts(was)

        return self._alone(hold.gpu, switch_on)

    def undo(self, hold: MigMode, records: Records, boot_id: str) -> None:
        record = records[hold]
        if record.made.get("was") != "off":
            return

        def switch_off(nvml: Nvml) -> None:
            try:
                gpu = nvml.mig(hold.gpu.uuid)
            except HardwareError as error:
                if error.code == NvmlCode.NOT_FOUND and record.boot_id != boot_id:
                    return  # it was taken out of the node
                raise
            mode = gpu.mode()
            if mode is None:
                raise _unknown(hold.gpu)
            if not (mode.on or mode.pending):
                return
            if record.boot_id != boot_id and gpu.switchable():
                return  # the driver's mode ended with its boot; an administrator switched this one on
            left = gpu.instances(sure=True) if mode.on else ()
            if left:
                _log.warning("MIG mode stays on", gpu=hold.gpu.uuid, because=_listed(left))
                return
            _switch(gpu, hold.gpu, on=False)

        _patiently(lambda: self._alone(hold.gpu, switch_off), self._sleep)

    def _alone[T](self, gpu: GpuIdentity, switch: Callable[[Nvml], T]) -> T:
        """Do it, and if something has the GPU open do it again while we ourselves have nothing open: a pause of what
        listens for events takes up to a second, and is seldom needed."""
        try:
            return self._nvml.use(gpu, switch)
        except HardwareError as error:
            if error.code != NvmlCode.IN_USE:
                raise
        with self._paused():
            return self._nvml.use(gpu, switch)


class GpuInstances(_MigEffect):
    """Facts: `gi`, its id."""

    def before(self, hold: GpuInstance, records: Records) -> Made:
        def look(nvml: Nvml) -> Made:
            _check_free(hold, nvml.mig(hold.gpu.uuid).instances_if_on(), records)
            return Made()

        return self._nvml.use(hold.gpu, look)

    def make(self, hold: GpuInstance, records: Records) -> Made:
        stands = _stands(records[hold], self._nvml.boot_id())

        def create(nvml: Nvml) -> Made:
            gpu = nvml.mig(hold.gpu.uuid)
            _check_mode_is_on(gpu, hold)
            instances = gpu.instances()
            live_gpu_instance = _at_place(hold, instances)
            if stands and live_gpu_instance is None:
                raise _lost(f"GPU instance {records[hold].made.get('gi')} ({_described(hold)})", hold.gpu)
            if live_gpu_instance is not None and all(
                _is_known(device, live_gpu_instance, hold, records) for device in live_gpu_instance.devices
            ):
                return records[hold].made.with_facts(Made((("gi", str(live_gpu_instance.id)),)))
            _check_free(hold, instances, records)
            return records[hold].made.with_facts(Made((("gi", str(_create(gpu, hold, instances))),)))

        return self._nvml.use(hold.gpu, create)

    def undo(self, hold: GpuInstance, records: Records, boot_id: str) -> None:
        if records[hold].boot_id != boot_id:
            return  # no instance outlives a boot

        def destroy(nvml: Nvml) -> None:
            gpu = nvml.mig(hold.gpu.uuid)
            live_gpu_instance = gpu.instance_at(hold.profile_id, hold.start)
            if live_gpu_instance is None:
                return
            if live_gpu_instance.devices:
                _log.warning(
                    "a GPU instance stays: its MIG devices do not belong to this driver",
                    gpu=hold.gpu.uuid,
                    instance=str(live_gpu_instance),
                )
                return
            in_use = f"{live_gpu_instance} cannot be taken back, because programs still use it{_users(gpu)}"
            _destroying(hold.gpu, in_use, lambda: gpu.destroy_gpu_instance(live_gpu_instance))
            if gpu.instance_at(hold.profile_id, hold.start) is not None:
                raise _stays(str(live_gpu_instance), hold.gpu)

        _patiently(lambda: self._nvml.use(hold.gpu, destroy), self._sleep)


class ComputeInstances(_MigEffect):
    """Facts: `gi` and `ci`, the ids; `uuid`; and `minor`, N of the GPU's /dev/nvidiaN since its mode was switched."""

    def before(self, hold: ComputeInstance, records: Records) -> Made:
        return Made()

    def make(self, hold: ComputeInstance, records: Records) -> Made:
        stands = _stands(records[hold], self._nvml.boot_id())

        def create(nvml: Nvml) -> Made:
            gpu = nvml.mig(hold.parent.gpu.uuid)
            parent = _at_place(hold.parent, gpu.instances_if_on())
            if parent is None:
                raise _lost(f"the GPU instance of its MIG device ({_described(hold.parent)})", hold.parent.gpu)
            device = _ours(hold, parent, records[hold])
            if stands and device is None:
                raise _lost(f"MIG device {records[hold].made.get('uuid')} ({_described(hold.parent)})", hold.parent.gpu)
            if device is None:
                _check_room(hold, parent)
                device = gpu.create_compute_instance(parent, hold.slices, hold.start)
            facts = {"gi": parent.id, "ci": device.facts.id, "uuid": device.facts.uuid, "minor": gpu.minor()}
            return records[hold].made.with_facts(Made(tuple((key, str(value)) for key, value in facts.items())))

        return self._nvml.use(hold.parent.gpu, create)

    def undo(self, hold: ComputeInstance, records: Records, boot_id: str) -> None:
        if records[hold].boot_id != boot_id:
            return  # no instance outlives a boot

        def there(gpu: MigGpu) -> LiveComputeInstance | None:
            parent = gpu.instance_at(hold.parent.profile_id, hold.parent.start, _sizes(hold))
            return _ours(hold, parent, records[hold]) if parent is not None else None

        def destroy(nvml: Nvml) -> None:
            gpu = nvml.mig(hold.parent.gpu.uuid)
            device = there(gpu)
            if device is None:
                return
            in_use = (
                f"MIG device {device} ({_described(hold.parent)}) cannot be taken back, because programs still use it"
                f"{_users(gpu)}; it is tried again until they end"
            )
            _destroying(hold.parent.gpu, in_use, lambda: gpu.destroy_compute_instance(device))
            if there(gpu) is not None:
                raise _stays(f"MIG device {device}", hold.parent.gpu)

        _patiently(lambda: self._nvml.use(hold.parent.gpu, destroy), self._sleep)


def _sizes(hold: ComputeInstance) -> tuple[int, ...]:
    """In compute slices; a whole GPU instance's are in the first number of its profile's name."""
    return (hold.slices if hold.slices is not None else int(hold.parent.profile.partition("g")[0]),)


def _unknown(identity: GpuIdentity) -> HardwareError:
    return HardwareError(
        "NVML does not say now whether MIG mode is on; it is tried again", about=str(identity), code=NvmlCode.NOT_FOUND
    )


def _stays(what: str, identity: GpuIdentity) -> HardwareError:
    return HardwareError(
        f"{what} is still there although NVML took it back, or says that it is gone; it is tried again",
        about=str(identity),
        code=NvmlCode.NOT_FOUND,
    )


def _stands(record: HoldRecord, boot_id: str) -> bool:
    """Whether a hold was made, for a claim that may be using it."""
    return record.state is HoldState.MADE and record.boot_id == boot_id


def _lost(what: str, identity: GpuIdentity, how: str = "destroyed it") -> HardwareError:
    return HardwareError(
        f"{what} no longer exists: an administrator or another tool {how} while a claim holds it; delete the pods that"
        " use the claim. It is created again when the claim is prepared again",
        about=str(identity),
        code=NvmlCode.NOT_FOUND,
    )


def _ready_for_mode(gpu: MigGpu, identity: GpuIdentity) -> Mode:
    """The mode, on a GPU on which it is on or can be switched on. Raises HardwareError that says whose move it is."""
    mode = gpu.mode()
    if mode is None:
        raise HardwareError("it cannot be divided: this GPU has no MIG", about=str(identity))
    if mode.on and not mode.pending:
        raise HardwareError(
            "MIG mode is on, but a pending request will switch it off at the next reset: reset the GPU, or cancel"
            f" the request with `nvidia-smi -i {identity.uuid} -mig 1`",
            about=str(identity),
        )
    if not mode.on and not gpu.switchable():
        after = "MIG mode waits for a reset of the GPU" if mode.pending else "MIG mode is off"
        raise HardwareError(
            f"{after}: an administrator switches it on once, with `nvidia-smi -i {identity.uuid} -mig 1` and a reset or"
            " a reboot, while nothing uses the GPU; or a GpuPolicy lets the driver do it (`modeChange: WhenIdle`)",
            about=str(identity),
            code=NvmlCode.RESET_REQUIRED,
        )
    return mode


def _switch(gpu: MigGpu, identity: GpuIdentity, *, on: bool) -> None:
    """Switch the mode, or leave nothing pending. Raises HardwareError that names who is in the way."""
    word = "on" if on else "off"
    try:
        status = gpu.set_mode(on)
    except HardwareError as error:
        if error.code not in (NvmlCode.IN_USE, NvmlCode.RESET_REQUIRED):
            raise HardwareError(
                f"MIG mode cannot be switched {word}: {error.message}", about=str(identity), code=error.code
            ) from error
        status = error.code
    after = gpu.mode()
    if after == Mode(on, on):
        return
    if after is not None and after.pending == on:
        with suppress(HardwareError):
            gpu.set_mode(not on)  # otherwise the next reset, perhaps by another tool, would switch it
    raise _refused(status, gpu, identity, word)


def _refused(status: int, gpu: MigGpu, identity: GpuIdentity, word: str) -> HardwareError:
    if status == NvmlCode.IN_USE:
        message = f"MIG mode cannot be switched {word} while programs have the GPU open{_users(gpu)}"
        advice = "end them; the plugin tries again until then"
    elif status == NvmlCode.RESET_REQUIRED:
        message = f"MIG mode can be switched {word} by a reset only, and the driver cannot do one here"
        advice = "in a virtual machine with the GPU passed through: reboot it after `nvidia-smi -mig`"
    else:
        message = f"MIG mode was not switched {word}: NVML gives {status} as reason"
        advice = "search the kernel log for NVRM"
    return HardwareError(f"{message}; {advice}", about=str(identity), code=status)


def _was(mode: Mode) -> Made:
    return Made((("was", "on" if mode.on else "off"),))


def _check_mode_is_on(gpu: MigGpu, hold: GpuInstance) -> None:
    if not gpu.is_on():
        raise _lost(f"{_described(hold)} cannot be made: the MIG mode that it needs", hold.gpu, "switched it off")


def _check_free(hold: GpuInstance, instances: Iterable[LiveGpuInstance], records: Records) -> None:
    in_the_way = [instance for instance in instances if instance.overlaps(hold.start, hold.size)]
    if not in_the_way:
        return
    others = {
        (other.profile, other.start)
        for other in records
        if isinstance(other, GpuInstance) and other != hold and other.gpu == hold.gpu
    }
    if all((live_gpu_instance.profile, live_gpu_instance.start) in others for live_gpu_instance in in_the_way):
        whose = "which this driver made for another claim; it is tried again until that one is released"
    else:
        whose = (
            "which this driver did not make for a claim that it knows; an administrator destroys it (`nvidia-smi mig"
            f" -i {hold.gpu.uuid} -dci`, then `-dgi`, with `-gi <id>`), or takes the GPU out of dynamic MIG in the"
            " policy"
        )
    raise HardwareError(
        f"{_described(hold)} cannot be created because of {_listed(in_the_way)}, {whose}",
        about=str(hold.gpu),
        code=NvmlCode.INSUFFICIENT_RESOURCES,
    )


def _create(gpu: MigGpu, hold: GpuInstance, instances: Iterable[LiveGpuInstance]) -> int:
    try:
        return gpu.create_gpu_instance(hold.profile_id, hold.start, hold.size)
    except HardwareError as error:
        reasons = {
            NvmlCode.INSUFFICIENT_RESOURCES: f"what it needs is taken by"
            f" {_listed(instances) or 'nothing that NVML lists'};"
            " the plugin tries again, and it fits when those no longer exist",
            NvmlCode.IN_USE: f"programs use the GPU as a whole{_users(gpu)}; end them",
            NvmlCode.INVALID_ARGUMENT: "the driver does not know this profile or placement on this GPU; were the GPU or"
            " its driver replaced since it was published?",
            NvmlCode.NOT_SUPPORTED: "the driver says that this GPU cannot be divided here, as a part of one that is"
            " given to a virtual machine cannot",
            NvmlCode.NO_PERMISSION: "this needs root and access to /dev/nvidia-caps/nvidia-cap1 (mig/config)",
        }
        reason = next((text for code, text in reasons.items() if code == error.code), error.message)
        raise HardwareError(
            f"{_described(hold)} cannot be made: {reason}", about=str(hold.gpu), code=error.code
        ) from error


def _check_room(hold: ComputeInstance, parent: LiveGpuInstance) -> None:
    in_the_way = [
        device.facts.uuid
        for device in parent.devices
        if hold.slices is None
        or (device.facts.start < hold.start + hold.slices and hold.start < device.facts.start + device.facts.slices)
    ]
    if in_the_way:
        raise HardwareError(
            f"MIG device in {_described(hold.parent)} cannot be created because of {', '.join(in_the_way)}"
            f" in GPU instance {parent.id}, which this driver did not make for a claim that it knows; an administrator"
            f" destroys it with `nvidia-smi mig -i {hold.parent.gpu.uuid} -gi {parent.id} -dci`",
            about=str(hold.parent.gpu),
            code=NvmlCode.INSUFFICIENT_RESOURCES,
        )


def _at_place(hold: GpuInstance, instances: Iterable[LiveGpuInstance]) -> LiveGpuInstance | None:
    wanted = (hold.profile, hold.start, hold.size)
    return next(
        (instance for instance in instances if (instance.profile, instance.start, instance.size) == wanted), None
    )


def _ours(hold: ComputeInstance, parent: LiveGpuInstance, record: HoldRecord) -> LiveComputeInstance | None:
    """The MIG device of this hold, if it is there: the one with its UUID, or the one at its place when the journal did
    not come to write down a UUID."""
    uuid = record.made.get("uuid")
    if uuid is not None:
        return next((device for device in parent.devices if device.facts.uuid == uuid), None)
    return next((device for device in parent.devices if _is_at(device, hold, parent)), None)


def _is_known(device: LiveComputeInstance, parent: LiveGpuInstance, hold: GpuInstance, records: Records) -> bool:
    """Whether a MIG device in the GPU instance of `hold` is that of a hold, made or begun."""
    return any(
        isinstance(other, ComputeInstance)
        and other.parent == hold
        and (record.made.get("uuid") or device.facts.uuid) == device.facts.uuid
        and _is_at(device, other, parent)
        for other, record in records.items()
    )


def _is_at(device: LiveComputeInstance, hold: ComputeInstance, parent: LiveGpuInstance) -> bool:
    slices = hold.slices if hold.slices is not None else parent.slices
    return (device.facts.slices, device.facts.start) == (slices, hold.start)


def _destroying(identity: GpuIdentity, in_use: str, act: Callable[[], None]) -> None:
    """`act`, and `in_use` as its error while programs use what it destroys. Gone already is fine; callers look."""
    try:
        act()
    except HardwareError as error:
        if error.code == NvmlCode.NOT_FOUND:
            return
        if error.code != NvmlCode.IN_USE:
            raise
        raise HardwareError(in_use, about=str(identity), code=error.code) from error


def _patiently(act: Callable[[], None], sleep: Callable[[float], None]) -> None:
    """Again and again while something is in use, for a few seconds."""
    for pause in PAUSES_S:
        try:
            return act()
        except HardwareError as error:
            if error.code != NvmlCode.IN_USE:
                raise
        sleep(pause)
    return act()


def _described(hold: GpuInstance) -> str:
    return f"{hold.profile} at {hold.start}"


def _listed(instances: Iterable[LiveGpuInstance]) -> str:
    return "; ".join(map(str, instances))


def _users(gpu: MigGpu) -> str:
    processes = gpu.processes()
    if not processes:
        return ": NVML names none, so perhaps a monitoring agent (DCGM) or another container holds it open"
    return f": {', '.join(processes)}"
