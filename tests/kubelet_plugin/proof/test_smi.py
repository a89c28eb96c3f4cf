"""What nvidia-smi prints, as drivers of several years print it; numbers are NVIDIA's, UUIDs are made up."""

from kubelet_plugin.doctor.smi import MigProfileOf, gpu_list, profile_list, time_slices

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
GPU  0 Profile ID 20 Placements: {6}:1
"""


def test_gpus_and_their_mig_devices() -> None:
    listed = gpu_list(LIST)
    assert listed.strange == ()
    assert listed.rows == {
        GPU: {"name": "NVIDIA A100-SXM4-40GB"}, MIG: {}, PART: {}, OTHER: {"name": "A100-SXM4-40GB"}, OLD_MIG: {},
    }  # fmt: skip


def test_what_is_not_understood_is_kept() -> None:
    lost = "Unable to determine the device handle for gpu 0000:3B:00.0: GPU is lost.  Reboot the system"
    listed = gpu_list(f"{lost}\n{LIST}")
    assert (listed.strange, len(listed.rows)) == ((lost,), 5)
    strange = profile_list(PROFILES + "Failed to display profiles\n", "GPU 0 Profile\n").strange
    assert strange == ("Failed to display profiles", "GPU 0 Profile")


def test_a_profile_is_two_lines_and_placements_have_names_or_not() -> None:
    listed = profile_list(PROFILES, PLACEMENTS)
    assert listed.strange == ()
    assert [(key.profile, row.get("name"), row.get("GiB"), row["placements"]) for key, row in listed.rows.items()] == [
        (19, "1g.5gb", 4.75, "{0,1,2,3,4,5,6}:1"),
        (20, "1g.5gb+me", 4.75, "{6}:1"),
        (0, "7g.40gb", 39.5, "{0}:8"),
        (14, None, None, "{0,2,4}:2"),
    ]
    assert listed.rows[MigProfileOf(0, 0)] == {
        "name": "7g.40gb",
        "instances": 1,
        "GiB": 39.5,
        "SM": 98,
        "DEC": 5,
        "ENC": 0,
        "CE": 7,
        "JPEG": 1,
        "OFA": 1,
        "placements": "{0}:8",
    }


def test_a_time_slice_is_a_known_word_on_its_line() -> None:
    assert time_slices(f"GPU {GPU}: Timeslice: Default\n") == ("Default",)
    assert time_slices("|   0     Timeslice      LONG     |\n") == ("Long",)
    assert time_slices("Timeslice: 2 ms\nDefault\n") == ()
