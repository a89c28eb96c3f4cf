import errno
from pathlib import Path
from typing import Any

import pytest
from support.driver_tree import VERSION, DriverTree, elf_library, linker_cache

from dra_driver.cdi.edits import DriverFile
from kubelet_plugin.hardware import driver_files
from kubelet_plugin.hardware.driver_files import cached_libraries
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.hook_program import HookMode, HookPrograms
from kubelet_plugin.hardware.sysfs import Seen

LIB64 = "/usr/lib64"
DEBIAN = "/usr/lib/x86_64-linux-gnu"


@pytest.fixture
def tree(tmp_path: Path) -> DriverTree:
    return DriverTree(tmp_path)


def below(tree: DriverTree, root: str = "/") -> driver_files.DriverTree:
    files = tree.host if root == "/" else type(tree.host)(tree.path(root))
    return driver_files.DriverTree(files, root, Seen())


def libraries(tree: DriverTree, root: str = "/") -> dict[str, str]:
    return {file.container_path: file.host_path for file in below(tree, root).libraries(VERSION)}


def links(tree: DriverTree) -> dict[str, str]:
    driver_tree = below(tree)
    return {link.path: link.target for link in driver_tree.links(driver_tree.libraries(VERSION), VERSION)}


# Libraries


def test_every_library_with_the_drivers_version_belongs_to_it_and_no_other(tree: DriverTree) -> None:
    tree.libraries(LIB64, "libcuda", "libnvidia-something-new", "libEGL_nvidia")
    tree.libraries(f"{LIB64}/vdpau", "libvdpau_nvidia")
    tree.libraries(LIB64, "libcuda", version="550.54.14")
    tree.file(f"{LIB64}/libc.so.6")
    tree.file(f"{LIB64}/libcuda.so.{VERSION}.old")
    assert sorted(libraries(tree)) == [
        f"{LIB64}/libEGL_nvidia.so.{VERSION}",
        f"{LIB64}/libcuda.so.{VERSION}",
        f"{LIB64}/libnvidia-something-new.so.{VERSION}",
        f"{LIB64}/vdpau/libvdpau_nvidia.so.{VERSION}",
    ]


def test_libraries_with_versions_of_their_own_belong_to_it_too(tree: DriverTree) -> None:
    for name in ("libnvidia-egl-gbm.so.1.1.2", "libnvidia-egl-wayland2.so.1.0.0", "libnvidia-nvvm70.so.4"):
        tree.file(f"{LIB64}/{name}")
    tree.link(f"{LIB64}/libnvidia-egl-gbm.so.1", "libnvidia-egl-gbm.so.1.1.2")
    tree.file(f"{LIB64}/libnvidia-container.so.1.17.8")
    assert sorted(libraries(tree)) == [
        f"{LIB64}/libnvidia-egl-gbm.so.1.1.2",
        f"{LIB64}/libnvidia-egl-wayland2.so.1.0.0",
        f"{LIB64}/libnvidia-nvvm70.so.4",
    ]


@pytest.mark.parametrize(
    "folder",
    [
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/lib64",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/usr/local/glibc/usr/lib",
        "/usr/local/glibc/lib",
        "/usr/lib",
        "/",
    ],
)
def test_libraries_are_found_in_the_folder_of_each_distribution(tree: DriverTree, folder: str) -> None:
    tree.libraries(folder, "libcuda")
    path = f"{folder.rstrip('/')}/libcuda.so.{VERSION}"
    assert libraries(tree) == {path: path}


def test_paths_in_the_container_are_those_below_the_driver_root(tree: DriverTree) -> None:
    tree.libraries("/home/kubernetes/bin/nvidia/lib64", "libcuda")
    assert libraries(tree, "/home/kubernetes/bin/nvidia") == {
        f"/lib64/libcuda.so.{VERSION}": f"/home/kubernetes/bin/nvidia/lib64/libcuda.so.{VERSION}"
    }


def test_a_library_is_taken_from_the_best_folder_and_once(tree: DriverTree) -> None:
    tree.libraries(LIB64, "libcuda")
    tree.libraries(DEBIAN, "libcuda", "libnvidia-ml")
    assert sorted(libraries(tree)) == [f"{DEBIAN}/libnvidia-ml.so.{VERSION}", f"{LIB64}/libcuda.so.{VERSION}"]


def test_folders_that_are_links_to_each_other_count_once(tree: DriverTree) -> None:
    tree.libraries(LIB64, "libcuda")
    tree.link("/lib64", "usr/lib64")
    assert list(libraries(tree)) == [f"{LIB64}/libcuda.so.{VERSION}"]
    assert below(tree).folders.count("/lib64") == 0


def test_32_bit_libraries_are_left_out(tree: DriverTree) -> None:
    """Where /usr/lib is the folder of 32-bit libraries, as in Fedora."""
    tree.file(f"/usr/lib/libcuda.so.{VERSION}", elf_library(machine=3, bits=32))
    tree.file(f"/usr/lib64/libnvidia-ml.so.{VERSION}", elf_library())
    assert list(libraries(tree)) == [f"{LIB64}/libnvidia-ml.so.{VERSION}"]


def test_nvml_of_32_bits_in_a_better_folder_is_not_the_drivers(tree: DriverTree) -> None:
    tree.file(f"/usr/lib64/libnvidia-ml.so.{VERSION}", elf_library(machine=3, bits=32))
    tree.file(f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{VERSION}", elf_library())
    assert find_driver_root(tree.host).nvml_library.parent.name == "x86_64-linux-gnu"


def test_links_are_followed_inside_the_root_only(tree: DriverTree) -> None:
    root = "/run/nvidia/driver"
    tree.file(f"/outside/libcuda.so.{VERSION}")
    tree.file(f"{root}/opt/libnvidia-ml.so.{VERSION}")
    tree.link(f"{root}{LIB64}/libcuda.so.{VERSION}", f"/outside/libcuda.so.{VERSION}")
    tree.link(f"{root}{LIB64}/libnvidia-ml.so.{VERSION}", f"/opt/libnvidia-ml.so.{VERSION}")
    assert libraries(tree, root) == {f"{LIB64}/libnvidia-ml.so.{VERSION}": f"{root}/opt/libnvidia-ml.so.{VERSION}"}


def test_a_file_that_cannot_be_read_is_none(tree: DriverTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a broken disk, or in the root of a driver container that has just ended."""
    tree.libraries(LIB64)
    tree.file("/run/nvidia-persistenced/socket")
    tree.file("/usr/bin/nvidia-cdi-hook")
    readable = Path.stat

    def stat(path: Path, **options: Any) -> Any:
        if path.name in (f"libcuda.so.{VERSION}", "socket", "nvidia-cdi-hook"):
            raise OSError(errno.EIO, "Input/output error")
        return readable(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    assert list(libraries(tree)) == [f"{LIB64}/libnvidia-ml.so.{VERSION}"]
    assert below(tree).sockets() == ()
    assert HookPrograms(tree.host).find(Seen()).mode is HookMode.NONE


def test_a_folder_of_that_name_is_no_library(tree: DriverTree) -> None:
    tree.folder(f"{LIB64}/libcuda.so.{VERSION}")
    assert libraries(tree) == {}


def test_xorg_modules_are_found_beside_the_libraries_and_in_xorgs_own_folders(tree: DriverTree) -> None:
    tree.file("/usr/lib/xorg/modules/drivers/nvidia_drv.so")
    tree.file(f"{LIB64}/nvidia/xorg/libglxserver_nvidia.so.{VERSION}")
    tree.file("/usr/lib/xorg/modules/drivers/amdgpu_drv.so")
    assert sorted(libraries(tree)) == [
        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
        f"{LIB64}/nvidia/xorg/libglxserver_nvidia.so.{VERSION}",
    ]
    assert links(tree)[f"{LIB64}/nvidia/xorg/libglxserver_nvidia.so"] == f"libglxserver_nvidia.so.{VERSION}"


# The dynamic linker's cache


@pytest.mark.parametrize("older", [False, True])
def test_the_linkers_cache_tells_of_folders_that_nobody_expects(tree: DriverTree, older: bool) -> None:
    tree.libraries("/usr/lib/nvidia-580", "libcuda", "libnvidia-ml")
    cache = linker_cache(
        "/usr/lib/nvidia-580/libcuda.so.1", "/usr/lib/libc.so.6", "/gone/libnvidia-ml.so.1", older_format_before=older
    )
    tree.file("/etc/ld.so.cache", cache)
    assert sorted(libraries(tree)) == [
        f"/usr/lib/nvidia-580/libcuda.so.{VERSION}",
        f"/usr/lib/nvidia-580/libnvidia-ml.so.{VERSION}",
    ]


def test_this_machines_linker_cache_is_understood() -> None:
    """A real one, where there is one: everything has libc."""
    cache = Path("/etc/ld.so.cache")
    if not cache.exists():
        pytest.skip("no ld.so.cache here")
    paths = list(cached_libraries(cache.read_bytes(), ("libc.so.6",)))
    assert paths
    assert all(Path(path).exists() and Path(path).name == "libc.so.6" for path in paths)


@pytest.mark.parametrize("length", [0, 10, 40, 60, 75])
def test_a_damaged_linker_cache_tells_nothing_and_stops_nothing(length: int) -> None:
    cache = linker_cache("/usr/lib/libcuda.so.1", "/usr/lib/libnvidia-ml.so.1")[:length]
    assert all("libcuda" not in path for path in cached_libraries(cache, ("libcuda.so",)))


# Links


def test_links_of_the_host_are_kept_with_what_they_say(tree: DriverTree) -> None:
    tree.libraries(LIB64, "libcuda", "libEGL_nvidia", "libnvidia-glcore")
    tree.link(f"{LIB64}/libcuda.so.1", f"libcuda.so.{VERSION}")
    tree.link(f"{LIB64}/libcuda.so", "libcuda.so.1")
    tree.link(f"{LIB64}/libEGL_nvidia.so.0", f"libEGL_nvidia.so.{VERSION}")
    tree.link(f"{LIB64}/libcudart.so", "libcudart.so.12")
    tree.link(f"{LIB64}/libEGL_nvidia.so.9", "gone")
    assert links(tree) == {
        f"{LIB64}/libEGL_nvidia.so.0": f"libEGL_nvidia.so.{VERSION}",
        f"{LIB64}/libcuda.so": "libcuda.so.1",
        f"{LIB64}/libcuda.so.1": f"libcuda.so.{VERSION}",
    }


def test_links_that_programs_count_on_are_made_where_the_host_has_none(tree: DriverTree) -> None:
    tree.libraries(LIB64, "libcuda", "libnvidia-ml", "libnvidia-allocator", "libGLX_nvidia")
    assert links(tree) == {
        f"{LIB64}/gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1",
        f"{LIB64}/libGLX_indirect.so.0": f"libGLX_nvidia.so.{VERSION}",
        f"{LIB64}/libcuda.so": "libcuda.so.1",
        f"{LIB64}/libcuda.so.1": f"libcuda.so.{VERSION}",
        f"{LIB64}/libnvidia-allocator.so.1": f"libnvidia-allocator.so.{VERSION}",
        f"{LIB64}/libnvidia-ml.so": "libnvidia-ml.so.1",
        f"{LIB64}/libnvidia-ml.so.1": f"libnvidia-ml.so.{VERSION}",
    }


def test_a_link_by_way_of_alternatives_leads_straight_to_the_library(tree: DriverTree) -> None:
    """Debian's, whose /etc/alternatives no container has."""
    tree.libraries(f"{DEBIAN}/nvidia/current", "libcuda")
    tree.link("/etc/alternatives/nvidia--libcuda.so.1", f"{DEBIAN}/nvidia/current/libcuda.so.1")
    tree.link(f"{DEBIAN}/nvidia/current/libcuda.so.1", f"libcuda.so.{VERSION}")
    tree.link(f"{DEBIAN}/libcuda.so.1", "/etc/alternatives/nvidia--libcuda.so.1")
    targets = links(tree)
    assert targets[f"{DEBIAN}/libcuda.so.1"] == f"nvidia/current/libcuda.so.{VERSION}"
    assert targets[f"{DEBIAN}/nvidia/current/libcuda.so.1"] == f"libcuda.so.{VERSION}"


def test_links_of_another_drivers_libraries_are_left_out(tree: DriverTree) -> None:
    tree.libraries(LIB64, "libcuda")
    tree.libraries(LIB64, "libcuda", version="550.54.14")
    tree.link(f"{LIB64}/libcuda.so.0", "libcuda.so.550.54.14")
    assert f"{LIB64}/libcuda.so.0" not in links(tree)


# The rest


def test_programs_are_found_once_each_in_the_first_folder(tree: DriverTree) -> None:
    for path in ("/opt/bin/nvidia-smi", "/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-imex", "/usr/bin/bash"):
        tree.file(path)
    tree.folder("/usr/bin/nvidia-debugdump")
    assert [file.container_path for file in below(tree).programs()] == [
        "/opt/bin/nvidia-smi",
        "/usr/local/bin/nvidia-imex",
    ]


def test_configuration_is_mounted_where_loaders_look_wherever_the_host_has_it(tree: DriverTree) -> None:
    tree.file("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json")
    tree.file("/etc/OpenCL/vendors/nvidia.icd")
    tree.file("/usr/local/share/glvnd/egl_vendor.d/10_nvidia.json")
    tree.file("/vulkan/icd.d/nvidia_icd.json")
    assert below(tree).configuration() == (
        DriverFile("/etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
        DriverFile("/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        DriverFile("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", "/etc/vulkan/icd.d/nvidia_icd.x86_64.json"),
        DriverFile(
            "/usr/local/share/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"
        ),
    )


def test_firmware_comes_from_the_first_folder_that_has_this_drivers(tree: DriverTree) -> None:
    tree.file(f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    tree.file(f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin")
    tree.file(f"/lib/firmware/nvidia/{VERSION}/notes.txt")
    tree.file("/lib/firmware/updates/nvidia/550.54.14/gsp_ga10x.bin")
    firmware = below(tree).firmware(VERSION, ("/lib/firmware/updates", "/lib/firmware"))
    assert [file.container_path for file in firmware] == [
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        f"/lib/firmware/nvidia/{VERSION}/gsp_tu10x.bin",
    ]
    assert below(tree).firmware("1.2.3", ("/lib/firmware",)) == ()


def test_sockets_are_found_in_run_or_var_run(tree: DriverTree) -> None:
    tree.file("/run/nvidia-persistenced/socket")
    tree.link("/var/run", "/run")
    tree.file("/run/nvidia-fabricmanager/socket")
    assert [file.container_path for file in below(tree).sockets()] == ["/run/nvidia-persistenced/socket"]


@pytest.mark.parametrize(
    ("folder", "content", "machine"),
    [
        ("/usr/lib/aarch64-linux-gnu", b"", "aarch64"),
        ("/usr/lib/x86_64-linux-gnu", b"", "x86_64"),
        ("/usr/lib64", elf_library(machine=183), "aarch64"),
        ("/usr/lib64", elf_library(), "x86_64"),
    ],
)
def test_the_machine_is_told_by_the_folder_or_the_library(
    tree: DriverTree, folder: str, content: bytes, machine: str
) -> None:
    tree.file(f"{folder}/libcuda.so.{VERSION}", content)
    driver_tree = below(tree)
    assert driver_tree.machine(driver_tree.libraries(VERSION)) == machine
