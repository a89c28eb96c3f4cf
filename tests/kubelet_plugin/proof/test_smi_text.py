"""What nvidia-smi prints, as drivers of several years print it; numbers are NVIDIA's, UUIDs are made up."""

from kubelet_plugin.doctor.proof.smi_text import (
    ListedGpu,
    ListedMig,
    ListedPlacements,
    gpu_list,
    placements,
    profiles,
    time_slices,
)

GPU, OTHER = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"
MIG, PART = "MIG-00000000-0000-0000-0000-00000000000a", "MIG-00000000-0000-0000-0000-00000000000b"
OLD_MIG = f"MIG-{GPU}/1/0"

LIST = f"""GPU 0: NVIDIA A100-SXM4-40GB (UUID: {GPU})
  MIG 3g.20gb     Device  0: (UUID: {MIG})
  MIG 1c.3g.20gb  Device  1: (UUID: {PART})
GPU 1: A100-SXM4-40GB (UUID: {OTHER})
  MIG 1g.5gb Device 0: (UUID: {OLD_MIG})
"""
PROFILES = """+--------------------------------------------------------------------------+
| GPU instance profiles:                                                   |
| GPU   Name          ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                           Free/Total   GiB              CE    JPEG  OFA  |
|==========================================================================|
|   0  MIG 1g.5gb     19     0/7        4.75       No     14     0     0   |
|                                                          1     0     0   |
+--------------------------------------------------------------------------+
|   0  MIG 1g.5gb+me  20     0/1        4.75       No     14     1     0   |
|                                                          1     1     1   |
+--------------------------------------------------------------------------+
|   0  MIG 7g.40gb     0     0/1        39.50      No     98     5     0   |
|                                                          7     1     1   |
+--------------------------------------------------------------------------+
"""
PLACEMENTS = """GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 14 Placements: {0,2,4}:2          MIG 2g.10gb
GPU  0 Profile ID  0 Placement : {0}:8
"""


def test_gpus_and_their_mig_devices() -> None:
    found = gpu_list(LIST)
    assert found.strange == ()
    assert found.gpus == (
        ListedGpu(0, "NVIDIA A100-SXM4-40GB", GPU, (ListedMig("3g.20gb", MIG), ListedMig("1c.3g.20gb", PART))),
        ListedGpu(1, "A100-SXM4-40GB", OTHER, (ListedMig("1g.5gb", OLD_MIG),)),
    )


def test_what_is_not_understood_is_kept() -> None:
    lost = "Unable to determine the device handle for gpu 0000:3B:00.0: GPU is lost.  Reboot the system"
    found = gpu_list(f"{lost}\n{LIST}")
    assert (found.strange, len(found.gpus)) == ((lost,), 2)
    assert profiles(PROFILES + "Failed to display profiles\n")[1] == ("Failed to display profiles",)
    assert placements("GPU 0 Profile\n") == ((), ("GPU 0 Profile",))


def test_a_row_of_profiles_is_two_lines() -> None:
    rows, strange = profiles(PROFILES)
    assert strange == ()
    assert [(row.name, row.id, row.total, row.gib) for row in rows] == [
        ("1g.5gb", 19, 7, 4.75), ("1g.5gb+me", 20, 1, 4.75), ("7g.40gb", 0, 1, 39.5),
    ]  # fmt: skip
    last = rows[-1]
    assert (last.multiprocessors, last.decoders, last.encoders) == (98, 5, 0)
    assert (last.copy_engines, last.jpeg_engines, last.ofa_engines) == (7, 1, 1)


def test_placements_with_and_without_names() -> None:
    assert placements(PLACEMENTS) == (
        (
            ListedPlacements(0, 19, (0, 1, 2, 3, 4, 5, 6), 1),
            ListedPlacements(0, 14, (0, 2, 4), 2),
            ListedPlacements(0, 0, (0,), 8),
        ),
        (),
    )


def test_a_time_slice_is_a_known_word_on_its_line() -> None:
    assert time_slices(f"GPU {GPU}: Timeslice: Default\n") == ("Default",)
    assert time_slices("|   0     Timeslice      LONG     |\n") == ("Long",)
    assert time_slices("Timeslice: 2 ms\nDefault\n") == ()
