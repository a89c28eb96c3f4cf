from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from support.cdi import HOOK, UUID, claim_device, driver_files, drm_nodes, gpu_facts, gpu_node

from dra_driver.cdi.edits import (
    ClaimDevice,
    DriverFile,
    DriverFiles,
    HookProgram,
    Link,
    MpsClient,
    cdi_device_id,
    claim_kind,
    claim_spec,
)
from dra_driver.cdi.inject import ContainerDescription, SpecFile, SpecFiles, decode, inject
from dra_driver.cdi.model import CdiSpec, DeviceNode, encode, problems_of

DRIVER = "gpu.nvidia.com"
CLAIM = "0b5b1c8e-6b9e-4b0e-8f0a-000000000001"
OTHER_CLAIM = "ab5b1c8e-6b9e-4b0e-8f0a-000000000002"
FOLDER = "/usr/lib/x86_64-linux-gnu"
WITH_HOOK = driver_files(hook=HOOK)


def the_spec(
    *devices: ClaimDevice, files: DriverFiles = WITH_HOOK, claim: str = CLAIM, driver: str = DRIVER
) -> CdiSpec:
    return claim_spec(driver, claim, devices or (claim_device(),), files)


def container(ids: Sequence[str], *specs: CdiSpec, env: tuple[str, ...] = ()) -> ContainerDescription:
    """What a container with these devices gets on a host without device nodes."""
    files = tuple(SpecFile(PurePosixPath(f"{index}.json"), 0, spec) for index, spec in enumerate(specs))
    return inject(ContainerDescription(env=env), ids, SpecFiles(files))


def device_id(device: ClaimDevice, claim: str = CLAIM) -> str:
    return cdi_device_id(DRIVER, claim, device.device)


def mounted(spec: CdiSpec) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in spec.container_edits.mounts}


def arguments(spec: CdiSpec) -> list[tuple[str, ...]]:
    return [hook.args[1:] for hook in spec.container_edits.hooks]


# Identity


def test_a_claims_spec_has_the_names_of_nvidias_own_driver() -> None:
    spec = the_spec()
    assert spec.kind == "k8s.gpu.nvidia.com/claim"
    assert [device.name for device in spec.devices] == [f"{CLAIM}-gpu-5a7b12c3"]
    assert cdi_device_id(DRIVER, CLAIM, "gpu-5a7b12c3") == f"k8s.gpu.nvidia.com/claim={CLAIM}-gpu-5a7b12c3"


def test_a_renamed_driver_has_a_vendor_of_its_own() -> None:
    assert claim_kind("gpu.example.com") == "k8s.gpu.example.com/claim"
    assert the_spec(driver="gpu.example.com").kind == "k8s.gpu.example.com/claim"
    assert cdi_device_id("gpu.example.com", CLAIM, "gpu-0").startswith("k8s.gpu.example.com/claim=")


@pytest.mark.parametrize("files", [WITH_HOOK, driver_files()], ids=["hook", "no hook"])
def test_specs_are_valid_and_of_the_lowest_version(files: DriverFiles) -> None:
    assert problems_of(the_spec(files=files)) == ()
    assert the_spec(files=files, claim=CLAIM).cdi_version == "0.5.0"  # the claim's UID begins with a digit
    assert the_spec(files=files, claim=OTHER_CLAIM).cdi_version == "0.3.0"


def test_the_same_claim_gives_the_same_bytes_whether_or_not_anything_was_built_before() -> None:
    devices = (claim_device(1), claim_device(0, drm=True))
    text = encode(the_spec(*devices, files=driver_files(hook=HOOK)))
    assert encode(the_spec(*devices)) == text
    assert encode(the_spec(*devices)) == text
    assert decode(text) == the_spec(*devices)


def test_the_common_part_is_made_once_for_all_claims() -> None:
    assert the_spec(claim=CLAIM).container_edits is the_spec(claim=OTHER_CLAIM).container_edits
    assert the_spec().container_edits.text is the_spec().container_edits.text


# Device nodes


def test_nodes_carry_type_and_numbers_so_that_the_host_need_not_have_them() -> None:
    got = container([device_id(claim_device())], the_spec())
    assert {(node.path, node.type, node.major, node.minor) for node in got.device_nodes} == {
        ("/dev/nvidia0", "c", 195, 0),
        ("/dev/nvidiactl", "c", 195, 255),
        ("/dev/nvidia-uvm", "c", 508, 0),
    }


def test_a_container_gets_only_the_gpus_of_its_requests() -> None:
    first, second = claim_device(0), claim_device(1)
    got = container([device_id(second)], the_spec(first, second))
    assert [
        node.path for node in got.device_nodes if node.path.startswith("/dev/nvidia") and node.path[-1].isdigit()
    ] == ["/dev/nvidia1"]


def test_groups_are_needed_for_nodes_that_are_not_open_to_all() -> None:
    closed = ClaimDevice("gpu-0", gpu_facts(), (gpu_node(file_mode=0o660, gid=44),))
    spec = the_spec(closed)
    assert spec.devices[0].container_edits.additional_gids == (44,)
    assert spec.cdi_version == "0.7.0"
    control = DeviceNode("/dev/nvidiactl", type="c", major=195, minor=255, file_mode=0o660, gid=45)
    assert the_spec(files=driver_files(control_nodes=(control,))).container_edits.additional_gids == (45,)


@pytest.mark.parametrize(("mode", "gid"), [(0o666, 44), (0o660, None), (0o660, 0)])
def test_groups_are_not_needed_for_open_nodes_or_those_of_root(mode: int, gid: int | None) -> None:
    spec = the_spec(ClaimDevice("gpu-0", gpu_facts(), (gpu_node(file_mode=mode, gid=gid),)))
    assert spec.devices[0].container_edits.additional_gids == ()


# What a program is told


def test_a_program_is_told_the_uuid_of_each_of_its_gpus() -> None:
    first, second = claim_device(0), claim_device(1)
    spec = the_spec(first, second)
    environment = container([device_id(first)], spec)
    assert f"NVIDIA_DRA_DEVICE_GPU_5A7B12C3={UUID}" in environment.env
    assert not any("5A7B12C4" in variable for variable in environment.env)
    both = container([device_id(first), device_id(second)], spec)
    assert uuids(both) == {first.gpu.uuid, second.gpu.uuid}


def test_a_container_with_two_claims_is_told_of_the_gpus_of_both() -> None:
    first, second = claim_device(0), claim_device(1)
    got = container(
        [device_id(first), device_id(second, OTHER_CLAIM)], the_spec(first), the_spec(second, claim=OTHER_CLAIM)
    )
    assert uuids(got) == {first.gpu.uuid, second.gpu.uuid}
    assert len({mount.container_path for mount in got.mounts}) == len(got.mounts)


def test_devices_to_look_at_are_told_apart_from_those_to_use() -> None:
    mine, watched = claim_device(0), claim_device(1, admin_access=True)
    got = container([device_id(mine), device_id(watched)], the_spec(mine, watched))
    assert uuids(got) == {mine.gpu.uuid}
    assert f"NVIDIA_DRA_ADMIN_DEVICE_GPU_5A7B12C4={watched.gpu.uuid}" in got.env


def test_the_nvidia_runtime_is_kept_from_injecting_what_the_image_asks_for() -> None:
    got = container([device_id(claim_device())], the_spec(), env=("NVIDIA_VISIBLE_DEVICES=all",))
    assert [variable for variable in got.env if variable.startswith("NVIDIA_VISIBLE_DEVICES=")] == [
        "NVIDIA_VISIBLE_DEVICES=void"
    ]


def uuids(got: ContainerDescription) -> set[str]:
    """As a program reads them: all variables with the prefix."""
    return {variable.partition("=")[2] for variable in got.env if variable.startswith("NVIDIA_DRA_DEVICE_")}


# With a hook program


def test_files_are_mounted_where_they_are_below_the_driver_root() -> None:
    files = mounted(the_spec())
    assert files[f"{FOLDER}/libcuda.so.580.82.07"] == f"/run/nvidia/driver{FOLDER}/libcuda.so.580.82.07"
    assert files["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert len(files) == 7


def test_files_are_read_only_and_sockets_are_not() -> None:
    options = {mount.container_path: mount.options for mount in the_spec().container_edits.mounts}
    assert options["/usr/bin/nvidia-smi"] == ("ro", "nosuid", "nodev", "rbind", "rprivate")
    assert options["/run/nvidia-persistenced/socket"] == ("nosuid", "nodev", "rbind", "rprivate", "noexec")


def test_hooks_make_links_then_compatibility_then_the_cache() -> None:
    spec = the_spec()
    assert arguments(spec) == [
        (
            "create-symlinks",
            "--link", f"libcuda.so.1::{FOLDER}/libcuda.so",
            "--link", f"libcuda.so.580.82.07::{FOLDER}/libcuda.so.1",
            "--link", f"libnvidia-ml.so.580.82.07::{FOLDER}/libnvidia-ml.so.1",
        ),
        ("enable-cuda-compat", "--host-driver-version=580.82.07"),
        ("update-ldcache", "--ldconfig-path", "/sbin/ldconfig", "--folder", FOLDER, "--folder", f"{FOLDER}/vdpau"),
        ("disable-device-node-modification",),
    ]  # fmt: skip
    for hook in spec.container_edits.hooks:
        assert hook.hook_name == "createContainer"
        assert hook.path == "/usr/bin/nvidia-cdi-hook"
        assert hook.args[0] == "nvidia-cdi-hook"
        assert hook.env == ("NVIDIA_CTK_DEBUG=false",)


def test_nvidia_ctk_has_its_hooks_one_level_deeper() -> None:
    older = HookProgram("/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook"), HOOK.sub_commands, "1.14", "/sbin/ldconfig")
    hooks = the_spec(files=driver_files(hook=older)).container_edits.hooks
    assert hooks
    for hook in hooks:
        assert hook.path == "/usr/bin/nvidia-ctk"
        assert hook.args[:2] == ("nvidia-ctk", "hook")


@pytest.mark.parametrize("missing", sorted(HOOK.sub_commands))
def test_a_sub_command_that_the_program_does_not_have_is_never_named(missing: str) -> None:
    """It would keep every container from starting."""
    hook = HookProgram(
        HOOK.path,
        HOOK.arguments,
        {name: flags for name, flags in HOOK.sub_commands.items() if name != missing},
        "1",
        HOOK.ldconfig,
    )
    spec = the_spec(claim_device(drm=True), files=driver_files(hook=hook))
    named = [*arguments(spec), *(edit.args[1:] for edit in spec.devices[0].container_edits.hooks)]
    assert missing not in {words[0] for words in named}
    assert {words[0] for words in named} <= hook.sub_commands.keys()


def test_a_release_without_the_flag_is_not_told_which_ldconfig_to_run() -> None:
    """It would refuse the flag, and no container would start."""
    older = {**HOOK.sub_commands, "update-ldcache": frozenset({"--folder"})}
    hook = HookProgram("/usr/bin/nvidia-ctk", ("nvidia-ctk", "hook"), older, "1.14.6", "/sbin/ldconfig")
    update = [words for words in arguments(the_spec(files=driver_files(hook=hook))) if "update-ldcache" in words]
    assert update == [("hook", "update-ldcache", "--folder", FOLDER, "--folder", f"{FOLDER}/vdpau")]


def test_the_directory_of_libcuda_is_told() -> None:
    assert f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}" in the_spec().container_edits.env
    two = driver_files(hook=HOOK, cuda_folders=("/usr/lib64", FOLDER))
    assert f"NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64:{FOLDER}" in the_spec(files=two).container_edits.env


# Without one


HOSTS_WITHOUT = [
    pytest.param(None, id="no program"),
    pytest.param(HookProgram(HOOK.path, HOOK.arguments, HOOK.sub_commands, "1.18", ldconfig=None), id="no ldconfig"),
    pytest.param(
        HookProgram(HOOK.path, HOOK.arguments, {"create-symlinks": frozenset()}, "1", "/sbin/ldconfig"), id="old"
    ),
]


@pytest.mark.parametrize("hook", HOSTS_WITHOUT)
def test_without_a_hook_each_name_of_a_library_is_a_file_where_the_linker_looks_by_itself(
    hook: HookProgram | None,
) -> None:
    spec = the_spec(files=driver_files(hook=hook))
    files = mounted(spec)
    cuda = f"/run/nvidia/driver{FOLDER}/libcuda.so.580.82.07"
    for folder in (FOLDER, "/usr/lib64"):
        for name in ("libcuda.so", "libcuda.so.1", "libcuda.so.580.82.07"):
            assert files[f"{folder}/{name}"] == cuda
        assert f"{folder}/libnvidia-glcore.so.580.82.07" in files
        assert f"{folder}/vdpau/libvdpau_nvidia.so.580.82.07" in files
    assert "update-ldcache" not in {words[0] for words in arguments(spec)}
    assert not any(variable.startswith("LD_LIBRARY_PATH=") for variable in spec.container_edits.env)
    assert f"NVIDIA_CTK_LIBCUDA_DIR={FOLDER}" in spec.container_edits.env


def test_without_an_ldconfig_the_other_hooks_still_run() -> None:
    hook = HookProgram(HOOK.path, HOOK.arguments, HOOK.sub_commands, "1.18", ldconfig=None)
    names = [words[0] for words in arguments(the_spec(files=driver_files(hook=hook)))]
    assert names == ["enable-cuda-compat", "disable-device-node-modification"]


def test_without_a_hook_libraries_of_unusual_places_are_where_the_linker_looks_too() -> None:
    """Talos has them in /usr/local/glibc, GKE in lib64 of its own root; images know neither."""
    path = "/usr/local/glibc/usr/lib/libcuda.so.580.82.07"
    files = driver_files(
        machine="aarch64",
        libraries=(DriverFile(path, path),),
        links=(Link("/usr/local/glibc/usr/lib/libcuda.so.1", "libcuda.so.580.82.07"),),
        library_folders=("/usr/local/glibc/usr/lib",),
    )
    got = {path: host for path, host in mounted(the_spec(files=files)).items() if "libcuda" in path}
    assert got == {
        f"{folder}/{name}": path
        for folder in ("/usr/lib/aarch64-linux-gnu", "/usr/lib64")
        for name in ("libcuda.so.1", "libcuda.so.580.82.07")
    }


def test_without_a_hook_links_into_other_folders_are_followed() -> None:
    files = driver_files(
        libraries=(DriverFile("/h/libnvidia-allocator.so.1", f"{FOLDER}/libnvidia-allocator.so.580.82.07"),),
        links=(
            Link(f"{FOLDER}/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
            Link(f"{FOLDER}/libnvidia-allocator.so.1", "libnvidia-allocator.so.580.82.07"),
            Link(f"{FOLDER}/loop.so", "loop.so"),
            Link(f"{FOLDER}/dangling.so", "nowhere.so"),
        ),
    )
    names = {path.removeprefix(FOLDER) for path in mounted(the_spec(files=files)) if path.startswith(FOLDER)}
    assert names == {
        "/gbm/nvidia-drm_gbm.so", "/libnvidia-allocator.so.1", "/libnvidia-allocator.so.580.82.07",
    }  # fmt: skip


def test_libraries_outside_the_linkers_folders_stay_where_they_are() -> None:
    xorg = "/usr/lib/xorg/modules/drivers/nvidia_drv.so"
    files = driver_files(libraries=(DriverFile(xorg, xorg),), links=(), library_folders=(FOLDER,))
    assert [path for path in mounted(the_spec(files=files)) if path.endswith("nvidia_drv.so")] == [xorg]


# Graphics


def test_drm_nodes_get_their_names_by_pci_address() -> None:
    spec = the_spec(claim_device(drm=True))
    (hook,) = spec.devices[0].container_edits.hooks
    assert hook.args[1:] == (
        "create-symlinks",
        "--link", "../card1::/dev/dri/by-path/pci-0000:1b:00.0-card",
        "--link", "../renderD128::/dev/dri/by-path/pci-0000:1b:00.0-render",
    )  # fmt: skip
    assert len(spec.devices[0].container_edits.device_nodes) == 3


def test_without_a_hook_the_names_by_pci_address_are_nodes_themselves() -> None:
    nodes = the_spec(claim_device(drm=True), files=driver_files()).devices[0].container_edits.device_nodes
    numbers = {node.path: (node.major, node.minor) for node in nodes}
    assert numbers["/dev/dri/by-path/pci-0000:1b:00.0-card"] == numbers["/dev/dri/card1"] == (226, 1)
    assert numbers["/dev/dri/by-path/pci-0000:1b:00.0-render"] == numbers["/dev/dri/renderD128"] == (226, 128)


def test_a_gpu_without_drm_nodes_needs_no_hook_of_its_own() -> None:
    assert the_spec(claim_device()).devices[0].container_edits.hooks == ()


def test_groups_of_drm_nodes_count_too() -> None:
    device = ClaimDevice("gpu-0", gpu_facts(), (gpu_node(), *drm_nodes(file_mode=0o660, gid=44)))
    assert the_spec(device).devices[0].container_edits.additional_gids == (44,)


# Parts, shares, virtual machines

MPS = MpsClient("/state/mps/one/pipe", "/state/mps/one/shm")
VFIO = ClaimDevice(
    "gpu-0-vfio",
    None,
    (DeviceNode("/dev/vfio/7", type="c", major=511, minor=7),),
    identity="0000:1b:00.0",
    driver_files=False,
)


def test_a_program_is_told_the_uuid_of_its_mig_device_and_gets_its_nodes() -> None:
    nodes = (gpu_node(), DeviceNode("/dev/nvidia-caps/nvidia-cap21", type="c", major=236, minor=21))
    device = ClaimDevice("gpu-0-mig-1g10gb-3", gpu_facts(), nodes, identity="MIG-1")
    got = container([device_id(device)], the_spec(device))
    assert "NVIDIA_DRA_DEVICE_GPU_0_MIG_1G10GB_3=MIG-1" in got.env
    assert {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21"} <= {node.path for node in got.device_nodes}


def test_a_client_of_mps_meets_its_daemon_where_it_looks_for_it() -> None:
    device = replace(claim_device(), mps=MPS)
    got = container([device_id(device)], the_spec(device))
    mounts = {mount.container_path: mount.host_path for mount in got.mounts}
    assert (mounts["/tmp/nvidia-mps"], mounts["/dev/shm"]) == (MPS.pipe, MPS.shm)
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in got.env
    assert not [variable for variable in got.env if "PERCENTAGE" in variable or "LIMIT" in variable]
    assert problems_of(the_spec(device)) == ()


def test_a_share_has_its_limits_in_its_containers() -> None:
    device = replace(claim_device(), mps=replace(MPS, thread_percentage=25, memory_bytes=10 << 30))
    got = container([device_id(device)], the_spec(device))
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in got.env
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M" in got.env


def test_two_shares_of_one_device_are_asked_for_apart() -> None:
    first, second = (replace(claim_device(), share_id=share) for share in ("share-a", "share-b"))
    names = [device.name for device in the_spec(first, second).devices]
    assert names == [f"{CLAIM}-gpu-5a7b12c3-share-a", f"{CLAIM}-gpu-5a7b12c3-share-b"]
    assert cdi_device_id(DRIVER, CLAIM, first.device, "share-a").endswith(names[0])


def test_a_virtual_machine_gets_the_vfio_node_and_nothing_of_the_hosts_driver() -> None:
    got = container([device_id(VFIO)], the_spec(VFIO))
    assert [node.path for node in got.device_nodes] == ["/dev/vfio/7"]
    assert set(got.env) == {"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_DRA_DEVICE_GPU_0_VFIO=0000:1b:00.0"}
    assert (got.mounts, got.hooks) == ((), ())


def test_a_gpu_beside_one_for_a_virtual_machine_brings_the_driver_itself() -> None:
    gpu = claim_device()
    spec = the_spec(gpu, VFIO)
    alone = container([device_id(gpu)], the_spec(gpu))
    beside = container([device_id(gpu)], spec)
    assert set(beside.mounts) == set(alone.mounts)
    assert set(beside.env) == set(alone.env)
    assert set(beside.device_nodes) == set(alone.device_nodes)
    assert container([device_id(VFIO)], spec).mounts == ()
    assert problems_of(spec) == ()
