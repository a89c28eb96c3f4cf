"""Every code of `dractl check` is said of a bad document, at its place, and not of the same document put right."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
from support.rows import rows
from support.shipped import classes

from dra_driver.allocation.behavior import CURRENT
from dra_driver.api.documents import read_documents
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.checking import codes
from dra_driver.checking.check import check, policies_for
from dra_driver.checking.codes import CODES, Code, Severity
from dra_driver.checking.findings import Finding
from dra_driver.checking.knowledge import (
    Knowledge,
    Sites,
    inventory_of_model,
    site_of_inventory,
    sites_of_models,
    with_shared_switches,
)

CLASSES = classes()
MODELS = sites_of_models(["dgx-h100", "t4"])
KNOWN = Knowledge(36, MODELS, CLASSES)
NO_DEVICES = Knowledge(36, Sites((), 0), CLASSES)


def findings_in(text: str, knowledge: Knowledge = KNOWN) -> tuple[Finding, ...]:
    reading = read_documents(text, "f.yaml")
    policies = policies_for(reading.documents)
    if policies and knowledge is KNOWN:
        knowledge = replace(knowledge, sites=sites_of_models(["dgx-h100", "t4"], policies))
    return check(reading, knowledge)


def claim(request: str = "", *, claim: str = "", kind: str = "ResourceClaim") -> str:
    """A claim; `request` are lines of `exactly`, `claim` lines beside `requests`, `|` stands for a new line."""
    devices = "\n".join(
        [
            "devices:",
            "  requests:",
            "  - name: gpu",
            "    exactly:",
            "      deviceClassName: gpu.nvidia.com",
            *(f"      {line}" for line in request.split("|") if line),
            *(f"  {line}" for line in claim.split("|") if line),
        ]
    )
    spec = f"spec:\n{_indented(devices)}"
    spec = f"spec:\n{_indented(spec)}" if kind == "ResourceClaimTemplate" else spec
    return f"apiVersion: resource.k8s.io/v1\nkind: {kind}\nmetadata: {{name: train}}\n{spec}\n"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


ON_PARTITION = "constraints:|- matchAttribute: gpu.nvidia.com/partition%s"


def selecting(expression: str) -> str:
    quoted = expression.replace("'", "''")
    return claim(f"selectors:|- cel: {{expression: '{quoted}'}}")


def pod(claims: str, uses: str, resources: str = "") -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata: {{name: train}}
spec:
  resourceClaims: [{claims}]
  containers:
  - name: main
    image: ubuntu:24.04
    resources:
      claims: [{uses}]
      limits: {{{resources}}}
"""


ATTRIBUTE = 'device.attributes["gpu.nvidia.com"]'
TEMPLATE = claim(kind="ResourceClaimTemplate")
GPU = "{name: gpu, resourceClaimTemplateName: train}"
USE = "{name: gpu}"


def config(parameters: str, requests: str = "[]") -> str:
    header = "apiVersion: resource.nvidia.com/v1beta1"
    opaque = f"{{driver: gpu.nvidia.com, parameters: {{{header}, {parameters}}}}}"
    return claim(claim=f"config:|- requests: {requests}|  opaque: {opaque}")


def gpu_policy(spec: str, name: str = "ml") -> str:
    return f"apiVersion: dra.gpu/v1alpha1\nkind: GpuPolicy\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n"


def policy(rules: str) -> str:
    return f"apiVersion: dra.gpu/v1alpha1\nkind: PublishingPolicy\n{rules}\n"


@dataclass(frozen=True)
class Story:
    """`at` is what is written at the place, `says` a part of the message or the fix."""

    code: Code
    bad: str
    at: str
    says: str
    good: str
    knowledge: Knowledge = KNOWN

    def __str__(self) -> str:
        return f"{self.code.name}: {self.says}"


DEVICE_CLASS = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: mine}\nspec:\n"
NAMESPACE = (
    "apiVersion: v1\nkind: Namespace\nmetadata: {name: ops, labels: {resource.kubernetes.io/admin-access: %s}}\n"
)
ADMIN = claim("adminAccess: true").replace("name: train", "name: train, namespace: ops")
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {a: b}}
  %s: 2
  template:
    metadata: {labels: {a: b}}
    spec:
      containers: [{name: main, image: ubuntu}]
"""
CRON_JOB = """\
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  schedule: "0 3 * * *"
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          resourceClaims: [{name: gpu, resourceClaimTemplateName: train}]
          containers:
          - name: main
            image: ubuntu
            resources:
              claims: [{name: %s}]
"""
OF_AN_OPERATOR = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Worker:
      template:
        spec:
          resourceClaims: [{name: gpu, resourceClaimTemplateName: train}]
          containers:
          - name: main
            resources: {claims: [{name: %s}]}
"""
OF_KSERVE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: chat, annotations: {serving.kserve.io/deploymentMode: Standard}}
spec:
  predictor:
    minReplicas: 1
    resourceClaims: [{name: gpu, resourceClaimTemplateName: train}]
    model:
      modelFormat: {name: onnx}
      resources: {claims: [{name: %s}]}
    containers:
    - {name: proxy, image: proxy}
"""
OF_KUBEVIRT = """\
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: machine}
spec:
  template:
    spec:
      resourceClaims: [{name: gpu, resourceClaimTemplateName: train}]
      domain:
        devices:
          disks: [{name: system, disk: {bus: virtio}}]
          gpus:
          - {name: first, claimName: %s, requestName: %s}
          - {name: second, deviceName: nvidia.com/T4}
      volumes: [{name: system, containerDisk: {image: ubuntu}}]
"""
TWO = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: train}
spec: {spec: {devices: {requests: [%s]}}}
"""
ONE_REQUEST = "{name: %s, exactly: {deviceClassName: gpu.nvidia.com}}"
BETA = """\
apiVersion: resource.k8s.io/v1beta1
kind: ResourceClaim
metadata: {name: train}
spec:
  devices:
    requests:
    - name: gpu
      deviceClassName: gpu.nvidia.com
      selectors:
      - cel: {expression: "%s"}
"""

DOMAIN = """\
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: %s}
spec:
  channel:
    resourceClaimTemplate:
      name: %s%s
"""

STORIES = (
    Story(codes.UNREADABLE, "a: 1\n\tb: 2\n", "\tb: 2", "has a tab", "# nothing\n"),
    Story(
        codes.API_VERSION,
        claim().replace("/v1", "/v3"),
        "apiVersion: resource.k8s.io/v3",
        "write `apiVersion: resource.k8s.io/v1`",
        claim(),
    ),
    Story(
        codes.API_VERSION, claim(kind="ResourceClam"), "kind: ResourceClam", "did you mean `ResourceClaim`?", claim()
    ),
    Story(
        codes.API_VERSION,
        (DEPLOYMENT % "replicas").replace("apps/v1", "v1"),
        "apiVersion: v1",
        "write `apiVersion: apps/v1`",
        DEPLOYMENT % "replicas",
    ),
    Story(
        codes.DEPRECATED, BETA % "true", "apiVersion: resource.k8s.io/v1beta", "put deviceClassName, selectors", claim()
    ),
    Story(
        codes.UNKNOWN_FIELD, claim("selector: []"), "selector: [", "did you mean `selectors`?", claim("selectors: []")
    ),
    Story(
        codes.UNKNOWN_FIELD,
        claim().replace("      exactly:\n", "").replace("        deviceC", "      deviceC"),
        "deviceClassName: gpu.nvidia.com",
        "did you mean `exactly.deviceClassName`?",
        claim(),
    ),
    Story(
        codes.UNKNOWN_FIELD, DEPLOYMENT % "replica", "replica: 2", "did you mean `replicas`?", DEPLOYMENT % "replicas"
    ),
    Story(codes.WRONG_TYPE, claim('count: "2"'), 'count: "2"', "must be a whole number", claim("count: 2")),
    Story(codes.WRONG_TYPE, pod(GPU, USE).replace("ubuntu:24.04", "7"), "image: 7", 'put it in quotes: "7"', TEMPLATE),
    Story(
        codes.MISSING_FIELD,
        claim(claim="config:|- opaque: {driver: a.b}"),
        "opaque: {driver: a.b",
        "`parameters` is missing",
        claim(),
    ),
    Story(codes.MISSING_FIELD, claim().replace("{name: train}", "{}"), "metadata: {", "name or generateName", claim()),
    Story(
        codes.MISSING_FIELD, pod("{name: gpu}", USE), "{name: gpu", "names neither", TEMPLATE + "---\n" + pod(GPU, USE)
    ),
    Story(codes.INVALID, claim("count: 0"), "count: 0", "must be greater than zero", claim("count: 1")),
    Story(
        codes.INVALID,
        claim("allocationMode: all"),
        "allocationMode: all",
        "did you mean `All`?",
        claim("allocationMode: All"),
    ),
    Story(
        codes.INVALID,
        claim("capacity: {requests: {memory: 8GB}}"),
        "memory: 8GB",
        "must be a quantity",
        claim("capacity: {requests: {memory: 8G}}"),
    ),
    Story(
        codes.TOO_MANY,
        claim("selectors:" + "|- cel: {expression: 'true'}" * 33),
        "selectors:",
        "at most 32",
        claim("selectors:" + "|- cel: {expression: 'true'}" * 32),
    ),
    Story(
        codes.DUPLICATE,
        TWO % f"{ONE_REQUEST % 'a'}, {ONE_REQUEST % 'a'}",
        "{name: a",
        "Duplicate value",
        TWO % f"{ONE_REQUEST % 'a'}, {ONE_REQUEST % 'b'}",
    ),
    Story(
        codes.DUPLICATE,
        TEMPLATE + "---\n" + pod(GPU, f"{USE}, {USE}"),
        "{name: gpu",
        "uses claim 'gpu' already",
        TEMPLATE + "---\n" + pod(GPU, USE),
    ),
    Story(
        codes.TWICE,
        claim() + "---\n" + claim(),
        "name: train",
        "f.yaml:1",
        claim() + "---\n" + claim().replace("train", "other"),
    ),
    Story(
        codes.NEEDS_GATE,
        claim("tolerations: [{operator: Exists}]"),
        "tolerations: [{operator: Exists",
        "DRADeviceTaints",
        claim(),
        Knowledge(35, Sites((), 0), CLASSES),
    ),
    Story(
        codes.NEEDS_GATE,
        claim("derivedAttributes: []"),
        "derivedAttributes: [",
        "DRADerivedAttributes",
        claim(),
        Knowledge(37, Sites((), 0), CLASSES),
    ),
    Story(codes.TOO_NEW, claim("derivedAttributes: []"), "derivedAttributes: [", "came with Kubernetes 1.37", claim()),
    Story(
        codes.UNKNOWN_REQUEST,
        config("kind: GpuConfig", "[gpus]"),
        "gpus",
        "did you mean `gpu`?",
        config("kind: GpuConfig", "[gpu]"),
    ),
    Story(
        codes.UNKNOWN_REQUEST,
        TEMPLATE + "---\n" + pod(GPU, "{name: gpu, request: gpus}"),
        "request: gpus",
        "did you mean `gpu`?",
        TEMPLATE + "---\n" + pod(GPU, "{name: gpu, request: gpu}"),
    ),
    Story(
        codes.UNUSED_REQUEST,
        TWO % f"{ONE_REQUEST % 'a'}, {ONE_REQUEST % 'b'}" + "---\n" + pod(GPU, "{name: gpu, request: a}"),
        "{name: gpu",
        "no container uses request `b`",
        TWO % f"{ONE_REQUEST % 'a'}, {ONE_REQUEST % 'b'}" + "---\n" + pod(GPU, USE),
    ),
    Story(
        codes.UNKNOWN_CLAIM,
        TEMPLATE + "---\n" + pod(GPU, f"{USE}, {{name: gpux}}"),
        "name: gpux",
        "did you mean `gpu`?",
        TEMPLATE + "---\n" + pod(GPU, USE),
    ),
    Story(codes.UNKNOWN_CLAIM, CRON_JOB % "nic", "name: nic", "it has `gpu`", CRON_JOB % "gpu"),
    Story(
        codes.CLAIMS_DROPPED,
        TEMPLATE + "---\n" + (OF_KSERVE % "gpu").replace("Standard", "Serverless"),
        "resourceClaims: [{name: gpu",
        "KServe's mode Serverless uses Knative, which drops claims of pods",
        TEMPLATE + "---\n" + OF_KSERVE % "gpu",
    ),
    Story(codes.UNKNOWN_CLAIM, OF_KSERVE % "nic", "name: nic", "it has `gpu`", TEMPLATE + "---\n" + OF_KSERVE % "gpu"),
    Story(codes.UNKNOWN_CLAIM, OF_AN_OPERATOR % "nic", "name: nic", "it has `gpu`", OF_AN_OPERATOR % "gpu"),
    Story(
        codes.UNKNOWN_CLAIM,
        OF_KUBEVIRT % ("nic", "gpu"),
        "claimName: nic",
        "it has `gpu`",
        TEMPLATE + "---\n" + OF_KUBEVIRT % ("gpu", "gpu"),
    ),
    Story(
        codes.UNKNOWN_REQUEST,
        TEMPLATE + "---\n" + OF_KUBEVIRT % ("gpu", "cpu"),
        "requestName: cpu",
        "it has `gpu`",
        TEMPLATE + "---\n" + OF_KUBEVIRT % ("gpu", "gpu"),
    ),
    Story(
        codes.UNUSED_CLAIM,
        TEMPLATE + "---\n" + pod(GPU, ""),
        "{name: gpu",
        "no container uses claim 'gpu'",
        TEMPLATE + "---\n" + pod(GPU, USE),
    ),
    Story(
        codes.NOT_FOUND,
        pod(GPU, USE),
        "resourceClaimTemplateName: train",
        "must be in the cluster",
        TEMPLATE + "---\n" + pod(GPU, USE),
    ),
    Story(
        codes.NOT_FOUND,
        claim().replace("gpu.nvidia.com", "fpga.example.com"),
        "deviceClassName: fpga.example.com",
        "DeviceClass 'fpga",
        claim(),
    ),
    Story(
        codes.MISNAMED,
        claim().replace("gpu.nvidia.com", "gpu.nvida.com"),
        "deviceClassName: gpu.nvida.com",
        "did you mean `gpu.nvidia.com`?",
        claim(),
    ),
    Story(
        codes.MISNAMED,
        claim().replace("gpu.nvidia.com", "imex.nvidia.com"),
        "deviceClassName: imex.nvidia.com",
        "only early releases of NVIDIA's driver had it",
        claim(),
    ),
    Story(
        codes.MISNAMED,
        claim() + "---\n" + pod(GPU, USE),
        "resourceClaimTemplateName: train",
        "write `resourceClaimName: train`",
        TEMPLATE + "---\n" + pod(GPU, USE),
    ),
    Story(
        codes.SELECTOR,
        selecting("device.drivr == 'a'"),
        "drivr == ''a''",
        "did you mean `driver`?",
        selecting("device.driver == 'gpu.nvidia.com'"),
    ),
    Story(
        codes.SELECTOR, selecting("device.driver"), "device.driver'", "must be bool", selecting("device.driver != ''")
    ),
    Story(codes.SELECTOR, BETA % "device.driver ==", '"', "", BETA % "device.driver != ''"),
    Story(
        codes.NOT_JUDGED,
        selecting("google.protobuf.Any{} == null"),
        "google.protobuf",
        "not judged: `google.protobuf.Any{…}` is not known here",
        selecting("device.driver != ''"),
    ),
    Story(
        codes.SELECTOR_FAILS,
        DEVICE_CLASS + f"  selectors: [{{cel: {{expression: '{ATTRIBUTE}.profile == \"1g.10gb\"'}}}}]",
        'device.attributes["gpu.nvidia.com"',
        "guard it with has",
        DEVICE_CLASS + f"  selectors: [{{cel: {{expression: 'has({ATTRIBUTE}.profile)'}}}}]",
    ),
    Story(
        codes.UNKNOWN_ATTRIBUTE,
        selecting(f"has({ATTRIBUTE}.productname)"),
        "productname)'",
        "did you mean `productName`?",
        selecting(f"has({ATTRIBUTE}.productName)"),
    ),
    Story(
        codes.UNKNOWN_ATTRIBUTE,
        selecting(f"has({ATTRIBUTE}.memory)"),
        "memory)'",
        "device.capacity",
        selecting('has(device.capacity["gpu.nvidia.com"].memory)'),
    ),
    Story(
        codes.UNKNOWN_ATTRIBUTE,
        selecting(f"has({ATTRIBUTE}.rack)"),
        "rack)'",
        "gpu.nvidia.com/rack",
        policy("attributes: [{values: {rack: r1}}]") + "---\n" + selecting(f"has({ATTRIBUTE}.rack)"),
    ),
    Story(
        codes.UNKNOWN_ATTRIBUTE,
        claim(claim="constraints: [{matchAttribute: gpu.nvidia.com/nvlinkdomain}]"),
        "matchAttribute: gpu.nvidia.com/nvl",
        "write `gpu.nvidia.com/nvlinkDomain`",
        claim(claim="constraints: [{matchAttribute: gpu.nvidia.com/nvlinkDomain}]"),
    ),
    Story(
        codes.CONFIG,
        config("kind: GpuConfig, sharing: {strategy: Mps}"),
        "strategy: Mps",
        "did you mean `MPS`?",
        config("kind: GpuConfig, sharing: {strategy: MPS}"),
    ),
    Story(codes.CONFIG, config("kind: GpuConfig, sharing: {}"), "sharing: {", "is missing", config("kind: GpuConfig")),
    Story(
        codes.CONFIG_KIND,
        config("kind: MigDeviceConfig", "[gpu]"),
        "kind: MigDeviceConfig",
        "use GpuConfig",
        config("kind: MigDeviceConfig"),
    ),
    Story(
        codes.UNKNOWN_DRIVER,
        config("kind: GpuConfig").replace("driver: gpu.nvidia.com", "driver: gpu.nvida.com"),
        "driver: gpu.nvida.com",
        "write `gpu.nvidia.com`",
        config("kind: GpuConfig"),
    ),
    Story(codes.NEVER_FITS, claim("count: 9"), "count: 9", "no known node has more than 8", claim("count: 8")),
    Story(
        codes.NEVER_FITS,
        selecting(f'{ATTRIBUTE}.architecture == "Kepler"'),
        "expression: 'device",
        "satisfies this selector",
        selecting(f'{ATTRIBUTE}.architecture == "Hopper"'),
    ),
    Story(
        codes.NEVER_FITS,
        DEVICE_CLASS + "  selectors: [{cel: {expression: 'device.driver == \"gpu.nvidia.com\" && false'}}]",
        "selectors: [{cel",
        "all selectors of the class",
        DEVICE_CLASS + "  selectors: [{cel: {expression: 'device.driver == \"gpu.nvidia.com\"'}}]",
    ),
    Story(
        codes.FABRIC_PARTITION,
        claim("count: 2", claim=ON_PARTITION % 4),
        "matchAttribute: gpu.nvidia.com/partition4",
        "request 4 GPUs, or match on gpu.nvidia.com/partition2",
        claim("count: 4", claim=ON_PARTITION % 4),
    ),
    Story(
        codes.ADMIN_ACCESS,
        NAMESPACE % '"no"' + "---\n" + ADMIN,
        "adminAccess: true",
        "does not allow admin access",
        NAMESPACE % '"true"' + "---\n" + ADMIN,
    ),
    Story(
        codes.EXTENDED_RESOURCE,
        pod("", "", "nvidia.com/gpus: 1"),
        "nvidia.com/gpus: 1",
        "did you mean `nvidia.com/gpu`?",
        pod("", "", "nvidia.com/gpu: 1"),
    ),
    Story(
        codes.EXTENDED_RESOURCE,
        pod("", "", "nvidia.com/gpumem: 3000"),
        "nvidia.com/gpumem: 3000",
        "is a resource of HAMi",
        pod("", "", "nvidia.com/gpu: 1"),
    ),
    Story(
        codes.EXTENDED_RESOURCE,
        pod("", "", "nvidia.com/mig-1g.10gb: 1"),
        "nvidia.com/mig-1g.10gb: 1",
        "class mig.nvidia.com",
        pod("", "", "nvidia.com/gpu: 1"),
    ),
    Story(
        codes.EXTENDED_RESOURCE,
        pod("", "", "nvidia.com/gpu.shared: 1"),
        "nvidia.com/gpu.shared: 1",
        "provides nvidia.com/gpu.shared; ask for a share with a claim of class shared.gpu.nvidia.com instead",
        pod("", "", "nvidia.com/gpu: 1"),
    ),
    Story(
        codes.TEMPLATE_TAKEN,
        DOMAIN % ("train", "channel", "") + "---\n" + DOMAIN % ("serve", "channel", ""),
        "name: channel",
        "makes one of this name",
        DOMAIN % ("train", "channel", "") + "---\n" + DOMAIN % ("serve", "channel-of-serve", ""),
    ),
    Story(
        codes.DEPRECATED_FIELD,
        DOMAIN % ("train", "channel", "\n  numNodes: 2"),
        "numNodes: 2",
        "leave it out",
        DOMAIN % ("train", "channel", ""),
    ),
    Story(
        codes.POLICY_FILE,
        policy("mig: [{mode: Dynamic}]"),
        "kind: PublishingPolicy",
        "policy convert",
        gpu_policy("mig: {mode: Dynamic}"),
    ),
    Story(
        codes.POLICY,
        gpu_policy("gpus: {products: [H100]}"),
        "H100",
        "a pattern is for the whole name; did you mean `NVIDIA H100 80GB HBM3`?",
        gpu_policy('gpus: {products: ["*H100*"]}'),
    ),
    Story(
        codes.POLICY,
        gpu_policy('gpus: {products: ["NVIDIA L40s"]}'),
        '"NVIDIA L40s"',
        "did you mean `NVIDIA L40S`?",
        gpu_policy('gpus: {products: ["NVIDIA L40S", "NVIDIA A40", "NVIDIA H20", "NVIDIA RTX A6000"]}'),
    ),
    Story(
        codes.POLICY, policy("mig: [{mode: Dynamical}]"), "mode: Dynamical", "Dynamic", policy("mig: [{mode: Dynamic}]")
    ),
)


@rows("story", STORIES)
def test_what_is_wrong_is_found_at_its_place(story: Story) -> None:
    findings = findings_in(story.bad, story.knowledge)
    of_code = [finding for finding in findings if finding.code == story.code.name]
    assert of_code, findings
    lines = story.bad.split("\n")
    assert lines[of_code[0].line - 1][of_code[0].column - 1 :].startswith(story.at)
    assert story.says in f"{of_code[0].message} {of_code[0].fix}"
    assert of_code[0].severity is story.code.severity or story.code.otherwise


@rows("story", STORIES)
def test_put_right_it_is_found_no_more(story: Story) -> None:
    assert [finding for finding in findings_in(story.good, story.knowledge) if finding.code == story.code.name] == []


def test_every_code_has_a_story() -> None:
    assert {story.code.name for story in STORIES} == {code.name for code in CODES}


def test_a_claim_that_is_right_is_clean() -> None:
    assert findings_in(TEMPLATE + "---\n" + pod(GPU, USE)) == ()


def test_where_it_is_known_which_nodes_there_are_a_misfit_is_an_error() -> None:
    (only,) = findings_in(claim("count: 9"), replace(KNOWN, certain=True))
    assert (only.code, only.severity) == ("never-fits", Severity.ERROR)


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        (claim().replace("gpu.nvidia.com", "gpu.nvidia.con"), Severity.ERROR),
        (claim().replace("gpu.nvidia.com", "gpu2.nvidia.com"), Severity.WARNING),
        (claim() + "---\n" + pod(GPU, USE), Severity.ERROR),
        (TEMPLATE.replace("name: train", "name: train-2") + "---\n" + pod(GPU, USE), Severity.WARNING),
        (selecting(f"has({ATTRIBUTE}.productNam)"), Severity.ERROR),
        (selecting(f"has({ATTRIBUTE}.memory)"), Severity.ERROR),
        (config("kind: GpuConfig").replace("driver: gpu.nvidia.com", "driver: gpu.nvidia.con"), Severity.ERROR),
        (config("kind: GpuConfig").replace("driver: gpu.nvidia.com", "driver: gpu.amd.com"), Severity.WARNING),
        (selecting(f"has({ATTRIBUTE}.partition)"), Severity.WARNING),
        (selecting(f"has({ATTRIBUTE}.uuidd)"), Severity.ERROR),
        (selecting(f"has({ATTRIBUTE}.tpye)"), Severity.ERROR),
        (selecting("device.capacity['gpu.nvidia.com'].memroy.isInteger()"), Severity.ERROR),
        (selecting(f"has({ATTRIBUTE}.tier)"), Severity.WARNING),
        (claim("capacity: {requests: {memroy: 8Gi}}"), Severity.ERROR),
        (claim("capacity: {requests: {cors: 8}}"), Severity.ERROR),
    ],
)
def test_a_misspelled_name_is_an_error_and_one_that_may_be_somewhere_else_is_not(text: str, severity: Severity) -> None:
    codes_of_names = ("misnamed", "unknown-attribute", "unknown-driver")
    assert [finding.severity for finding in findings_in(text) if finding.code in codes_of_names] == [severity]


def test_in_a_cluster_what_is_missing_is_an_error_and_what_is_there_is_not() -> None:
    empty = replace(KNOWN, existing={"ResourceClaimTemplate": frozenset()})
    (only,) = findings_in(pod(GPU, USE), empty)
    assert (only.code, only.severity) == ("not-found", Severity.ERROR)
    assert findings_in(pod(GPU, USE), replace(KNOWN, existing={"ResourceClaimTemplate": {("default", "train")}})) == ()


def in_cluster(*inventories: NodeInventorySpec) -> Knowledge:
    """A live one, with passthrough and without MIG."""
    policy = PublishingPolicy.of(
        {"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", "passthrough": [{}]}, about="test"
    )
    makers = [
        partial(site_of_inventory, inventory, policy, None, CURRENT, "gpu.nvidia.com") for inventory in inventories
    ]
    return Knowledge(36, Sites(makers, len(makers)), CLASSES, certain=True, existing={})


SWITCHED, OTHER = inventory_of_model("hgx-h200"), inventory_of_model("t4")
SHARED = with_shared_switches(SWITCHED)
assert SHARED is not None
VIRTUAL = claim().replace("ClassName: gpu", "ClassName: vfio.gpu")


@pytest.mark.parametrize(
    ("text", "nodes", "says"),
    [
        (VIRTUAL, [SWITCHED], "switch on the feature gate FabricManagerPartitioning"),
        (VIRTUAL, [OTHER, SWITCHED], "on hgx-h200 GPUs are connected by NVSwitches"),
        (VIRTUAL, [OTHER], None),
        (VIRTUAL, [SHARED], None),
        (claim(), [SWITCHED], None),
        (claim("count: 4"), [SWITCHED], None),
        (claim("count: 4"), [SHARED], "add the constraint matchAttribute: gpu.nvidia.com/partition4"),
        (claim("count: 4", claim=ON_PARTITION % 4), [SHARED], None),
        (claim(), [SHARED], None),
        (claim("allocationMode: All"), [SHARED], None),
    ],
)
def test_in_a_cluster_it_is_known_what_gpus_behind_switches_lack(
    text: str, nodes: list[NodeInventorySpec], says: str | None
) -> None:
    findings = [finding for finding in findings_in(text, in_cluster(*nodes)) if finding.code == "fabric-partition"]
    assert [finding.severity for finding in findings] == ([] if says is None else [Severity.WARNING])
    assert says is None or says in f"{findings[0].message} {findings[0].fix}"


def test_with_models_that_are_chosen_a_virtual_machine_behind_switches_is_told_and_a_partition_fits() -> None:
    knowledge = replace(KNOWN, certain=True)
    (only,) = findings_in(VIRTUAL, knowledge)
    assert (only.code, only.field) == ("fabric-partition", "spec.devices.requests[0].exactly")
    for size in (1, 2, 4, 8):
        assert findings_in(claim(f"count: {size}", claim=ON_PARTITION % size), knowledge) == ()
    assert findings_in(claim("count: 4"), knowledge) == ()


def test_requests_that_can_be_had_alone_but_not_together_are_told_so() -> None:
    expressions = [f'{ATTRIBUTE}.architecture == "{name}"' for name in ("Hopper", "Turing")]
    requests = [
        ONE_REQUEST.replace("com}", f"com, selectors: [{{cel: {{expression: '{text}'}}}}]}}") % name
        for name, text in zip("ab", expressions, strict=True)
    ]
    (only,) = findings_in(TWO % ", ".join(requests))
    assert (only.code, only.field) == ("never-fits", "spec.spec.devices.requests")
    assert "all together fit no node" in only.message


def test_a_request_for_another_drivers_devices_is_not_ours_to_judge() -> None:
    text = claim().replace("gpu.nvidia.com", "compute-domain-default-channel.nvidia.com")
    assert findings_in(text) == ()


def test_a_compute_instance_that_is_asked_for_by_name_can_be_had() -> None:
    selector = f"selectors:|- cel: {{expression: '{ATTRIBUTE}.profile == \"%s\"'}}"
    mig = claim(selector).replace("deviceClassName: gpu", "deviceClassName: mig")
    assert findings_in(mig % "1c.3g.40gb") == ()
    assert [finding.code for finding in findings_in(mig % "1c.9g.40gb")] == ["never-fits"]


def test_of_all_partitions_nobody_knows_how_many_there_will_be() -> None:
    assert findings_in(claim("allocationMode: All").replace("deviceClassName: gpu", "deviceClassName: mig")) == ()


def test_beside_a_request_for_all_the_others_are_still_judged() -> None:
    every = "    - {name: every, exactly: {deviceClassName: mig.nvidia.com, allocationMode: All}}\n"
    (only,) = findings_in(claim("count: 9") + every)
    assert only.field == "spec.devices.requests[0].exactly.count"


def test_of_a_list_of_alternatives_each_one_says_why_it_cannot_be_had() -> None:
    alternatives = ["{name: a, deviceClassName: gpu.nvidia.com, count: 9}"]
    alternatives += ["{name: b, deviceClassName: gpu.nvidia.com, capacity: {requests: {memory: 900Gi}}}"]
    many, much = findings_in(TWO % f"{{name: gpu, firstAvailable: [{', '.join(alternatives)}]}}")
    assert many.field == "spec.spec.devices.requests[0].firstAvailable[0].count"
    assert "no known node has more than 8" in many.message
    assert much.field == "spec.spec.devices.requests[0].firstAvailable[1]"
    assert "with less than 900Gi of memory" in much.message
    assert 'request "gpu/b" of claim train' in much.message


def test_a_gpu_beside_a_request_of_another_driver_is_still_judged() -> None:
    nic = "    - {name: nic, exactly: {deviceClassName: compute-domain-daemon.nvidia.com}}\n"
    (only,) = findings_in(claim("count: 9") + nic)
    assert only.code == "never-fits"


def test_a_config_of_the_class_completes_that_of_the_claim() -> None:
    shared = "  config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: resource.nvidia.com/v1beta1, "
    shared += "kind: GpuConfig, sharing: {strategy: MPS}}}}]\n"
    selectors = f"  selectors: [{{cel: {{expression: '{ATTRIBUTE}.type == \"gpu\"'}}}}]\n"
    settings = config("kind: GpuConfig, sharing: {mpsConfig: {multiUser: true}}", "[gpu]")
    claim_of_mine = settings.replace("deviceClassName: gpu.nvidia.com", "deviceClassName: mine")
    assert findings_in(DEVICE_CLASS + selectors + shared + "---\n" + claim_of_mine) == ()
    (missing,) = findings_in(DEVICE_CLASS + selectors + "---\n" + claim_of_mine)
    assert missing.code == "config"
    assert missing.field == "spec.devices.config[0].opaque.parameters.sharing.strategy"


def test_a_config_that_fits_only_some_of_the_devices_is_a_warning() -> None:
    both = config("kind: GpuConfig", "[gpu]").replace(
        "deviceClassName: gpu.nvidia.com", "deviceClassName: isolated.gpu.nvidia.com"
    )
    (only,) = findings_in(both)
    assert (only.code, only.severity) == ("config-kind", Severity.WARNING)
    assert "on devices of type mig" in only.message


def test_of_an_object_that_is_defined_twice_both_definitions_are_judged() -> None:
    bad = claim("count: 0")
    assert [finding.code for finding in findings_in(bad + "---\n" + bad)] == [
        "invalid-value",
        "defined-twice",
        "invalid-value",
    ]


def test_a_misspelled_field_is_not_missed_as_well() -> None:
    (only,) = findings_in(claim().replace("- name: gpu", "- nme: gpu"))
    assert (only.code, only.fix) == ("unknown-field", "write `name`")


def test_what_is_not_for_kubernetes_is_passed_over() -> None:
    assert findings_in("replicaCount: 1\nimage: {tag: x}\n---\nkind: Kustomization\nresources: [a]\n") == ()


def test_a_selector_that_fails_on_some_models_only_is_a_note_until_they_are_said_to_be_there() -> None:
    """A GB10 has no memory of its own."""
    text = selecting('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("10Gi")) > 0')
    sites = sites_of_models(["t4", "gb10"])
    (note,) = findings_in(text, Knowledge(36, sites, CLASSES))
    (warning,) = findings_in(text, Knowledge(36, sites, CLASSES, certain=True))
    assert (note.code, note.severity) == ("selector-fails", Severity.INFO)
    assert warning.severity is Severity.WARNING
    assert "gb10" in warning.message


def test_a_selector_that_binds_a_domain_is_understood() -> None:
    findings = findings_in(selecting('cel.bind(g, device.attributes["gpu.nvidia.com"], has(g.productname))'))
    assert "did you mean `productName`?" in findings[-1].message


def test_a_field_of_v1beta1_is_placed_where_it_is_written_there() -> None:
    findings = findings_in(BETA % "device.nothing")
    assert [finding.field for finding in findings if finding.code == "selector"] == [
        "spec.devices.requests[0].selectors[0].cel.expression"
    ]


def test_an_empty_expression_is_none() -> None:
    (only,) = findings_in(selecting(""), NO_DEVICES)
    assert (only.code, only.message) == ("selector", "the expression is empty")


def test_a_function_of_the_next_version_is_refused_for_the_older_server() -> None:
    assert any(
        finding.code == "selector"
        for finding in findings_in(selecting("[1].includes(1)"), replace(NO_DEVICES, minor=36))
    )


SLICE = """\
apiVersion: resource.k8s.io/v1%s
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.nvidia.com
  pool: {name: node-1, generation: 1, resourceSliceCount: 1}
  nodeName: node-1
  devices:
  - name: gpu-0
    %s
"""


@pytest.mark.parametrize(
    ("text", "field", "line"),
    [
        (SLICE % ("", "attributes: {type: {string: gpu, int: 1}}"), "spec.devices[0].attributes[type]", 10),
        (
            SLICE % ("beta1", "basic: {attributes: {type: {string: gpu, int: 1}}}"),
            "spec.devices[0].basic.attributes[type]",
            10,
        ),
        ((SLICE % ("", "attributes: {}")).replace("nodeName: node-1", "allNodes: false"), "spec.allNodes", 7),
    ],
)
def test_slices_are_judged_by_the_rules_of_the_server(text: str, field: str, line: int) -> None:
    (error,) = [finding for finding in findings_in(text) if finding.code == "invalid-value"]
    assert (error.field, error.line, error.severity) == (field, line, Severity.ERROR)


TAINT_RULE = """\
apiVersion: resource.k8s.io/%s
kind: DeviceTaintRule
metadata: {name: repair}
spec:
  deviceSelector: {driver: gpu.nvidia.com}
  taint: {key: example.com/repair, effect: %s}
"""


def test_a_taint_rule_is_of_the_version_that_its_server_has() -> None:
    assert findings_in(TAINT_RULE % ("v1beta2", "NoSchedule")) == ()
    assert findings_in(TAINT_RULE % ("v1", "NoSchedule"), replace(NO_DEVICES, minor=37)) == ()
    (newer,) = findings_in(TAINT_RULE % ("v1", "NoSchedule"))
    assert (newer.code, newer.fix) == ("api-version", "write `apiVersion: resource.k8s.io/v1beta2`")
    (older,) = findings_in(TAINT_RULE % ("v1beta2", "NoSchedule"), replace(NO_DEVICES, minor=37))
    assert (older.code, older.fix) == ("deprecated-api", "write `apiVersion: resource.k8s.io/v1`")
    (wrong,) = findings_in(TAINT_RULE % ("v1beta2", "Never"))
    assert wrong.field == "spec.taint.effect"


def test_operators_have_kinds_of_the_names_that_kubernetes_has() -> None:
    """Volcano's Job has tasks with pods inside; beside it stands a Job of Kubernetes of the same name."""
    pod = "{restartPolicy: Never, containers: [{name: c, image: registry.example.com/c:1, resources: {claims: [%s]}}]"
    pod += ", resourceClaims: [{name: gpu, resourceClaimTemplateName: none}]}"
    job = "kind: Job\nmetadata: {name: sweep}\n"
    volcano = f"apiVersion: batch.volcano.sh/v1alpha1\n{job}spec: {{tasks: [{{template: {{spec: %s}}}}]}}\n"
    batch = f"apiVersion: batch/v1\n{job}spec: {{template: {{spec: %s}}}}\n"
    right, wrong = pod % "{name: gpu}", pod % "{name: other}"
    missing = ["not-found"]
    assert [finding.code for finding in findings_in(volcano % right + "---\n" + batch % right)] == missing * 2
    assert "unknown-claim" in [finding.code for finding in findings_in(volcano % wrong)]
    assert [finding.code for finding in findings_in((batch % right).replace("batch/v1", "batch.k8s.io/v1"))] == [
        "api-version"
    ]
