"""nvidia-smi of a simulated node: time slices, persistence, resets, GPUs, and what MIG allows.

Options, refusals and exit statuses are those of the real program as far as this driver meets them; anything else is
refused like an unknown option.
"""

import glob
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from kubelet_plugin.simulation.programs.node import Attached, RootedNode

_SLICES = ("Default", "Short", "Medium", "Long")

_INVALID, _NOT_SUPPORTED, _NOT_FOUND, _NOT_LOADED, _LOST, _RESET_REQUIRED, _OTHER = 2, 3, 6, 9, 15, 16, 255
"""Exit statuses. Source: the manual page, "Return value"; they are NVML's numbers."""

DAEMON, OF_STATE = 700, "of-the-simulation"
"""The persistence daemon's process id, and what marks a process that is there because the state says so."""

_OWN_NUMA_MEMORY = 2
"""The addressing mode (ATS) of GPUs whose memory is memory of the machine."""

type Gpu = dict[str, Any]


class _Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def main(arguments: Sequence[str]) -> int:
    root, *options = arguments
    try:
        sys.stdout.writelines(f"{line}\n" for line in _run(RootedNode(root), _words(options)))
    except _Refused as error:
        sys.stdout.write(f"{error}\n")
        return error.status
    return 0


def _words(options: Sequence[str]) -> list[str]:
    """`--option=value` is `--option value`."""
    return [part for word in options for part in (word.split("=", 1) if word.startswith("-") else [word])]


def _run(node: RootedNode, words: list[str]) -> Iterator[str]:
    state = node.read()
    if words == ["--version"]:
        yield f"NVIDIA-SMI version  : {state['driver']['version']}"
        return
    if not state["driver"]["loaded"]:
        raise _Refused(
            _NOT_LOADED,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
            " NVIDIA driver is installed and running.",
        )
    with closing(node.attach()) as client:
        if words and words[0] == "compute-policy":
            yield from _compute_policy(node, _options(words[1:], flags=("-l", "--list")))
        elif words and words[0] == "mig":
            yield from _mig(node, _options(words[1:], flags=(*_PROFILES, *_PLACEMENTS)))
        elif "--gpu-reset" in words:
            yield from _reset(node, client, _options(words, flags=("--gpu-reset",)))
        else:
            yield from _general(node, _options(words, flags=("-L",)))


def _options(words: list[str], flags: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        options[word] = "" if word in flags else next(rest, "")
    return options


def _compute_policy(node: RootedNode, options: dict[str, str]) -> Iterator[str]:
    chosen = options.pop("-i", None)
    interval = options.pop("--set-timeslice", None)
    if options.keys() - {"-l", "--list"} or (interval is None and not options):
        raise _Refused(_INVALID, "Invalid combination of input arguments. Please run 'nvidia-smi compute-policy -h'.")
    if interval is None:
        for gpu in _chosen(node.read(), chosen):
            yield f"GPU {gpu['uuid']}: Timeslice: {_SLICES[gpu['time_slice']]}"
        return
    if interval not in ("0", "1", "2", "3"):
        raise _Refused(_INVALID, f"Invalid timeslice value: {interval}")
    yield from _set_time_slice(node, chosen, int(interval))


def _set_time_slice(node: RootedNode, chosen: str | None, interval: int) -> Iterator[str]:
    with node.edit() as state:
        for gpu in _chosen(state, chosen):
            if (gpu.get("mig") or {}).get("current") or state["model"]["compute_capability"][0] < 7:
                raise _Refused(_NOT_SUPPORTED, f"Unable to set timeslice for GPU {gpu['uuid']}: Not Supported")
            gpu["time_slice"] = interval
            yield f"Successfully set timeslice policy for GPU {gpu['uuid']}"
    yield "All done."


_PROFILES = ("-lgip", "--list-gpu-instance-profiles")
_PLACEMENTS = ("-lgipp", "--list-gpu-instance-possible-placements")
_RULE = "+" + "-" * 79 + "+"


def _mig(node: RootedNode, options: dict[str, str]) -> Iterator[str]:
    """What can be made on the GPUs in MIG mode. Source: NVIDIA's MIG user guide, outputs of several models."""
    state = node.read()
    chosen = options.pop("-i", None)
    if len(options) != 1 or not options.keys() & {*_PROFILES, *_PLACEMENTS}:
        raise _Refused(_INVALID, "Invalid combination of input arguments. Please run 'nvidia-smi mig -h' for help.")
    numbers = {gpu["uuid"]: number for number, gpu in enumerate(_chosen(state, None))}
    gpus = [(numbers[gpu["uuid"]], gpu) for gpu in _chosen(state, chosen) if (gpu.get("mig") or {}).get("current")]
    if not gpus:
        raise _Refused(_NOT_FOUND, "No MIG-enabled devices found.")
    profiles = _mig_profiles(node)
    if options.keys() & {*_PROFILES}:
        yield from _profile_table(gpus, profiles)
        return
    for number, _ in gpus:
        for profile in profiles:
            word = "Placements:" if len(profile["starts"]) > 1 else "Placement :"
            starts = ",".join(map(str, profile["starts"]))
            yield f"GPU {number:2d} Profile ID {profile['id']:2d} {word} {{{starts}}}:{profile['size']}"


def _profile_table(gpus: list[tuple[int, Gpu]], profiles: list[dict[str, Any]]) -> Iterator[str]:
    yield _RULE
    for line in (
        " GPU instance profiles:",
        " GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC",
        "                                Free/Total   GiB              CE    JPEG  OFA",
    ):
        yield f"|{line:<79}|"
    yield f"|{'=' * 79}|"
    for number, gpu in gpus:
        for profile in profiles:
            memory = f"{profile['memory_mib'] / 1024:.2f}"
            free = f"{_free(gpu, profile):6d}/{profile['max_instances']}"
            yield (
                f"|{number:4d}  MIG {profile['name']:<15}{profile['id']:3d}{free}        "
                f"{memory:<11}No     {profile['multiprocessors']:<7}{profile['decoders']:<6}{profile['encoders']:<4}|"
            )
            yield (f"|{'':63}{profile['copy_engines']:<6}{profile['jpeg_engines']:<6}{profile['ofa_engines']:<4}|")
            yield _RULE


def _free(gpu: Gpu, profile: dict[str, Any]) -> int:
    """How many more of these fit, one after the other."""
    taken = [(item["start"], item["start"] + item["size"]) for item in gpu["instances"]]
    free = 0
    for start in profile["starts"]:
        end = start + profile["size"]
        if all(end <= begin or stop <= start for begin, stop in taken):
            taken.append((start, end))
            free += 1
    return min(free, int(profile["max_instances"]))


def _mig_profiles(node: RootedNode) -> list[dict[str, Any]]:
    with open(f"{node.root}/sim/mig.json", encoding="utf-8") as file:
        profiles: list[dict[str, Any]] = json.load(file)["profiles"]
    return profiles


def _general(node: RootedNode, options: dict[str, str]) -> Iterator[str]:
    chosen = options.pop("-i", None)
    persistence = options.pop("-pm", None)
    query = options.pop("--query-gpu", None)
    options.pop("--format", None)  # csv without a header is the one form
    if options.keys() - {"-L"}:
        raise _Refused(_INVALID, f"Invalid argument: {next(iter(options))}")
    if persistence is not None:
        yield from _set_persistence(node, chosen, persistence)
    elif query is not None:
        yield from _query(node, chosen, query)
    else:
        yield from _list(node, chosen)


def _set_persistence(node: RootedNode, chosen: str | None, value: str) -> Iterator[str]:
    if value not in ("0", "1"):
        raise _Refused(_INVALID, f"Invalid persistence mode: {value}")
    on = value == "1"
    with node.edit() as state:
        for gpu in _chosen(state, chosen):
            _set_persistence_of(state, gpu, on=on)
            yield f"{'Enabled' if on else 'Disabled'} persistence mode for GPU {gpu['address']}."
        _show_daemon(node, state)
    yield "All done."


def _set_persistence_of(state: dict[str, Any], gpu: Gpu, *, on: bool) -> None:
    """By the persistence daemon where one runs, which leaves the kernel's own mode alone."""
    driver = state["driver"]
    if not driver["daemon"]:
        gpu["persistence_mode"] = int(on)
    elif on and driver["daemon_outdated"] and any(other["persistenced"] for other in state["gpus"] if other is not gpu):
        raise _Refused(_OTHER, f"Unable to set persistence mode for GPU {gpu['address']}: Unknown Error")
    else:
        gpu["persistenced"] = on
    if not on and state["model"]["addressing_mode"] == _OWN_NUMA_MEMORY:
        gpu["handles"] += 1


def _reset(node: RootedNode, client: Attached, options: dict[str, str]) -> Iterator[str]:
    """By the persistence daemon's leave: it lets go meanwhile. Any other process that has a GPU open is in the way."""
    chosen = options.pop("-i", None)
    if options.keys() - {"--gpu-reset"}:
        raise _Refused(_INVALID, f"Invalid argument: {next(iter(options))}")
    alone = client.alone()
    with node.edit() as state:
        gpus = _chosen(state, chosen, but=_RESET_REQUIRED)
        if state["driver"].get("resets") == "together" and len(gpus) < len(_chosen(state, None, but=_RESET_REQUIRED)):
            raise _Refused(_NOT_SUPPORTED, f"Resetting GPU {gpus[0]['address']} is not supported.")
        in_use = [gpu["address"] for gpu in gpus if gpu["clients"] or not alone]
        if in_use:
            lines = "".join(f"\n  GPU {address}: In use by another client" for address in in_use)
            raise _Refused(_OTHER, f"The following GPUs could not be reset:{lines}")
        for gpu in gpus:
            gpu["compute_mode"] = gpu["time_slice"] = 0
            gpu["fault"], gpu["instances"] = None, []
            gpu["health"].update(corrected_errors=0, uncorrected_errors=0, recovery_action=0)
            gpu["health"].update(remap_pending=False, channel_repair_pending=False, tpc_repair_pending=False)
            if gpu["mig"]:
                gpu["mig"]["current"] = gpu["mig"]["pending"]
            for folder in glob.glob(f"{node.root}/proc/driver/nvidia/capabilities/gpu{gpu['minor']}/mig/gi*"):
                shutil.rmtree(folder)
            yield f"GPU {gpu['address']} was successfully reset."
    yield "All done."


def _show_daemon(node: RootedNode, state: dict[str, Any]) -> None:
    """In /proc of the node: the GPUs that the persistence daemon has open. As `kubelet_plugin.simulation.vfio` does."""
    folder = f"{node.root}/proc/{DAEMON}"
    shutil.rmtree(folder, ignore_errors=True)
    opened = [gpu["minor"] for gpu in state["gpus"] if gpu["persistenced"] and gpu["bound_to"] == "nvidia"]
    if not opened:
        return
    os.makedirs(f"{folder}/fd")
    for name, text in (("comm", "nvidia-persiste\n"), (OF_STATE, "")):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
    for number, minor in enumerate(opened):
        os.symlink(f"/dev/nvidia{minor}", f"{folder}/fd/{number + 3}")


def _query(node: RootedNode, chosen: str | None, field: str) -> Iterator[str]:
    if field != "persistence_mode":
        raise _Refused(_INVALID, f'Field "{field}" is not a valid field to query.')
    for gpu in _chosen(node.read(), chosen):
        yield "Enabled" if gpu["persistenced"] or gpu["persistence_mode"] else "Disabled"


def _list(node: RootedNode, chosen: str | None) -> Iterator[str]:
    state = node.read()
    for index, gpu in enumerate(_chosen(state, chosen)):
        yield f"GPU {index}: {gpu.get('product') or state['model']['name']} (UUID: {gpu['uuid']})"
        yield from _mig_devices(node, gpu)


def _mig_devices(node: RootedNode, gpu: Gpu) -> Iterator[str]:
    if not gpu["instances"]:
        return
    profiles = {profile["id"]: profile for profile in _mig_profiles(node)}
    devices = [
        (device["index"], instance, device) for instance in gpu["instances"] for device in instance["compute_instances"]
    ]
    for index, instance, device in sorted(devices, key=lambda item: item[0]):
        profile = profiles[instance["profile"]]
        part = f"{device['slices']}c." if device["slices"] < profile["slices"] else ""
        yield f"  MIG {part + profile['name']:<12}Device {index:2d}: (UUID: {device['uuid']})"


def _chosen(state: dict[str, Any], chosen: str | None, *, but: int | None = None) -> list[Gpu]:
    """Those that an option names, or all. Refused for one that has a fault, unless that is `but`."""
    gpus = [gpu for gpu in state["gpus"] if gpu["bound_to"] == "nvidia"]
    if chosen is not None:
        gpus = [_gpu_named(gpus, word) for word in chosen.split(",")]
    for gpu in gpus:
        if gpu["fault"] and gpu["fault"] != but:
            raise _Refused(
                _LOST,
                f"Unable to determine the device handle for GPU {gpu['address']}: GPU is lost.  Reboot the system",
            )
    return gpus


def _gpu_named(gpus: list[Gpu], word: str) -> Gpu:
    for index, gpu in enumerate(gpus):
        if word in (str(index), gpu["uuid"], gpu["address"]):
            return gpu
    raise _Refused(_NOT_FOUND, f"No devices were found: {word}")
