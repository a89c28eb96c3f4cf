"""What does not go together is refused in a line, with the reason that holds for the hardware or the API."""

import pytest
from support.rows import rows

from dra_driver.authoring.intent import (
    Intent,
    MpsWish,
    ObjectForm,
    Same,
    WorkloadKind,
    is_model,
    parse_mps,
    parse_share,
    quantity,
)
from dra_driver.authoring.refusals import notes, refusals
from dra_driver.cli.new import known_gpus
from dra_driver.devices.exclusion import LIMITS, PAIRS
from dra_driver.errors import InvalidInput

KNOWN = known_gpus()


@rows(
    "intent, reason",
    [
        (Intent(mps=MpsWish(), interval="Long"), "--mps with --time-slice: time-slicing and MPS exclude each other"),
        (
            Intent(share={"cores": "50"}, mps=MpsWish()),
            "--mps with --share: the device has one time slice and one MPS daemon",
        ),
        (Intent(share={"cores": "50"}, interval="Long"), "--time-slice with --share: the device has one time slice"),
        (Intent(vm=True, mig="1g.10gb"), "--vm with --mig: a GPU of a virtual machine is unavailable"),
        (Intent(vm=True, share={"cores": "50"}), "--vm with --share: a GPU of a virtual machine is unavailable"),
        (Intent(vm=True, mps=MpsWish()), "--vm with --mps: the GPU is exclusive to a virtual machine"),
        (
            Intent(mig="1g.10gb", interval="Long"),
            "--time-slice with --mig: the time slice of MIG devices cannot be set",
        ),
        (Intent(gpu="t4", mig="1g.10gb"), "--gpu t4: this GPU has no MIG mode (Tesla T4, compute capability 7.5)"),
        (Intent(prefer=("h100", "l40s"), mig="1g.10gb"), "--prefer l40s: this GPU has no MIG mode"),
        (Intent(gpu="a30", mig="1g.10gb"), "--gpu a30: NVIDIA A30 has no profile 1g.10gb, but 4g.24gb"),
        (Intent(mig="1g.11gb"), "--mig 1g.11gb: no known GPU has this profile; there are "),
        (Intent(gpu="h100", memory="100Gi"), "--gpu h100: NVIDIA H100 80GB HBM3 has 79.6Gi of memory, less than 100Gi"),
        (Intent(gpu="l40s", count=2, same=Same.NVLINK), "--gpu l40s: NVIDIA L40S has no NVLink to other GPUs"),
        (Intent(mig="1g.10gb", count=2, same=Same.NVLINK), "--same nvlink with --mig: MIG devices cannot use NVLink"),
        (Intent(gpu="h100", same=Same.NVLINK), "--same nvlink with one device: say how many with --count"),
        (Intent(count=2, same=Same.GPU), "--same gpu without --mig"),
        (Intent(gpu="h100", prefer=("a100",)), "--gpu with --prefer"),
        (Intent(mig="1g.10gb", memory="5Gi"), "--memory with --mig: the profile 1g.10gb says how much memory"),
        (Intent(share={"memory": "8Gi"}, memory="8Gi"), "--memory with --share: set it in --share"),
        (
            Intent(ObjectForm.CLASS, share={}, memory="8Gi"),
            "--memory with --shared: a claim says how much memory its share has",
        ),
        (Intent(ObjectForm.CLASS, share={}, vm=True), "--vm with --shared: a GPU of a virtual machine"),
        (Intent(ObjectForm.CLASS, share={}, interval="Long"), "--time-slice with --shared: the device has"),
        (Intent(admin=True, share={"cores": "50"}), "--share with --admin: admin access takes nothing"),
        (Intent(admin=True, prefer=("h100",)), "--prefer with --admin"),
        (Intent(isolated=True, mig="1c.3g.40gb"), "--isolated with --mig 1c.3g.40gb: parts of one GPU instance"),
        (Intent(count=33), "--count 33: 1 to 32"),
        (Intent(count=1, workload=WorkloadKind.DEPLOYMENT), "--image is missing: a Deployment needs a program"),
        (Intent(count=0), "--count 0: 1 to 32"),
        (Intent(count=17, nic=True), "--count 17: 1 to 16 with a network device each"),
        (Intent(name="Not a name", count=1), "NAME 'Not a name': lower-case letters"),
        (Intent(name="threads=50", mps=MpsWish()), "NAME 'threads=50': not a name; set MPS limits with --mps-limits"),
        (Intent(gpu="h100'"), "--gpu \"h100'\": words of a product's name"),
        (Intent(count=1, tolerate=("-",)), "--tolerate '-': the key of a taint"),
        (Intent(prefer=("RTX PRO 6000", "rtx-pro-6000")), "--prefer: the same model twice"),
    ],
)
def test_a_wrong_combination_is_refused_with_its_reason(intent: Intent, reason: str) -> None:
    reasons = refusals(intent, KNOWN)
    assert any(reason_given.startswith(reason) for reason_given in reasons), reasons


def test_for_a_class_no_option_is_proposed_that_only_claims_have() -> None:
    reasons = refusals(Intent(ObjectForm.CLASS, name="threads=50", share={}), KNOWN)
    assert reasons == ("NAME 'threads=50': not a name; set MPS limits with --mps-limits",)


def test_reasons_of_the_hardware_are_those_of_the_one_table() -> None:
    table = {row.reason for row in (*PAIRS, *LIMITS)}
    for intent in (
        Intent(mps=MpsWish(), interval="Long"),
        Intent(vm=True, mig="1g.10gb"),
        Intent(vm=True, mps=MpsWish()),
        Intent(mig="1g.10gb", interval="Long"),
    ):
        assert any(refusal.partition(": ")[2] in table for refusal in refusals(intent, KNOWN))


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert len(refusals(Intent(count=0, gpu="t4", mig="1g.10gb", prefer=("h100",)), KNOWN)) == 3


def test_of_models_that_nobody_knows_nothing_is_claimed() -> None:
    assert refusals(Intent(gpu="x900", mig="1g.99gb", isolated=True), KNOWN) == ()
    assert refusals(Intent(gpu="x900", memory="900Gi"), KNOWN) == ()


def test_a_model_is_found_by_whole_words() -> None:
    def models(word: str) -> set[str]:
        return {gpu.product_name for gpu in KNOWN if is_model(gpu, word)}

    assert models("a1") == set()
    assert models("a10") == {"NVIDIA A10"}
    a100 = {"NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"}
    assert models("A100") == models("a100") == a100
    assert models("b200") == {"NVIDIA B200"}
    assert models("rtx-pro-6000") == models("RTX PRO 6000") != set()


@rows("text", ["", "cores", "cores=", "cores=0", "cores=101", "memory=lots", "cores=1,cores=2", "x=1"])
def test_a_share_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--share"):
        parse_share(text)


def test_shares_and_limits_are_read_from_words() -> None:
    assert parse_share("cores=50, memory=8Gi") == {"cores": "50", "memory": "8Gi"}
    assert parse_share("shares=2") == {"shares": "2"}
    assert parse_mps("threads=50,memory=8Gi") == MpsWish(50, "8Gi")
    with pytest.raises(InvalidInput, match="is 1024 bytes"):
        parse_mps("memory=1Ki")


@rows(
    "intent, note",
    [
        (
            Intent(memory="80Gi"),
            "less memory than 80Gi are left out: NVIDIA H100 80GB HBM3 (79.6Gi); to include them, write",
        ),
        (Intent(gpu="t4", memory="16Gi"), "Tesla T4 (15.0Gi); to include them, write --memory 15Gi"),
        (Intent(gpu="l4", memory="16Gi"), None),
        (Intent(memory="79Gi"), None),
        (Intent(share={"cores": "33"}), "a claim with cores alone takes all memory, and no other claim gets a share"),
        (Intent(share={"memory": "8Gi"}), "a claim with memory alone takes all cores"),
        (Intent(share={"cores": "33", "memory": "8Gi"}), None),
        (Intent(share={"shares": "1"}), None),
    ],
)
def test_what_may_surprise_is_noted(intent: Intent, note: str | None) -> None:
    texts = list(notes(intent, KNOWN))
    assert len(texts) == (note is not None) and all(note in text for text in texts if note is not None)


def test_an_amount_in_bytes_of_another_spelling_is_corrected() -> None:
    with pytest.raises(InvalidInput, match="'80GB' is not an amount; write 80Gi"):
        quantity("80GB", "--memory")
