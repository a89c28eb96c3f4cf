"""`dractl new claim|template|class|domain|deployment|…`: writes requests for GPUs as YAML that explains itself.

What is wanted comes from options or, in a terminal, from answers to a few questions; the YAML goes to standard output,
everything else to standard error, so `dractl new … | kubectl apply -f -` is safe.
"""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from dra_driver.api.config import Interval
from dra_driver.api.inventory import GpuFacts
from dra_driver.authoring.intent import (
    DRANET_CLASS,
    Intent,
    MpsWish,
    ObjectForm,
    Same,
    WorkloadKind,
    parse_mps,
    parse_share,
    quantity,
)
from dra_driver.authoring.objects import MOST_NODES, domain_objects, objects_of
from dra_driver.authoring.refusals import notes, refusals
from dra_driver.authoring.writing import plain, written
from dra_driver.errors import InvalidInput
from dra_driver.terminal import Format, option, print_data, print_message

_HELP = """Write a claim, a class, a domain or a workload from what you want.

\b
Examples:
  dractl new claim --gpu h100 --count 4 --same nvlink
  dractl new job train --gpu h100 --image pytorch/pytorch --command 'torchrun train.py'
  dractl new COMMAND --help"""

app = typer.Typer(help=_HELP, no_args_is_help=True)

_WORKLOADS = {kind.lower(): kind for kind in WorkloadKind if kind is not WorkloadKind.POD}
_INTERVALS: dict[str, Interval] = {"default": "Default", "short": "Short", "medium": "Medium", "long": "Long"}


NameArgument = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Name of the object; default: derived from the request, such as h100-x4."),
]
GpuOption = Annotated[str | None, option("GPU model: h100, l40s, rtx-pro-6000.", "--gpu", metavar="MODEL")]
MemoryOption = Annotated[str | None, option("Minimum memory of each device: 40Gi.", "--memory", metavar="AMOUNT")]
MigOption = Annotated[str | None, option("A MIG device: 1g.10gb, 1c.3g.40gb.", "--mig", metavar="PROFILE")]
MpsOption = Annotated[bool, option("Run the claim's programs at the same time, with MPS.", "--mps")]
MpsLimitsOption = Annotated[
    str | None, option("Use MPS, and limit each program: threads=50,memory=8Gi.", "--mps-limits", metavar="LIMITS")
]
TimeSliceOption = Annotated[
    Literal["default", "short", "medium", "long"] | None,
    option("Let the claim's programs take turns, with time slices of this length.", "--time-slice"),
]
IsolatedOption = Annotated[bool, option("Use only devices that are isolated from other claims.", "--isolated")]
VmOption = Annotated[bool, option("A GPU for a virtual machine.", "--vm")]
ImageOption = Annotated[
    str | None, option("Image of the pods; default: a small image that prints the devices and exits.", "--image")
]
CommandOption = Annotated[
    str | None, option("Command of the containers, instead of the image's own: 'python train.py'.", "--command")
]
TextOption = Annotated[
    Literal["yaml", "json"], typer.Option("--output", "-o", help="Output format: YAML with comments, or JSON without.")
]


_EXAMPLES = """

\b
Examples:
  dractl new {0} --gpu h100 --count 4 --same nvlink
  dractl new {0} --mig 1g.10gb --pod
  dractl new {0} --share cores=50,memory=8Gi
"""


_WORKLOAD_EXAMPLES = """

\b
Examples:
  dractl new {0} trainer --gpu h100 --image registry.example/train:1
  dractl new {0} small --mig 1g.10gb
"""


def request(
    context: typer.Context,
    name: NameArgument = None,
    gpu: GpuOption = None,
    prefer: Annotated[
        str | None, option("GPU models in order of preference: h200,h100,a100.", "--prefer", metavar="MODEL,…")
    ] = None,
    count: Annotated[int | None, option("How many devices; default: 1.", "--count")] = None,
    same: Annotated[Same | None, option("What the devices must have in common.", "--same")] = None,
    memory: MemoryOption = None,
    mig: MigOption = None,
    share: Annotated[
        str | None,
        option("A part of a device that others share: cores=50,memory=8Gi or shares=1.", "--share", metavar="AMOUNTS"),
    ] = None,
    with_nic: Annotated[bool, option("Also claim a network device of DRANET for each GPU.", "--with-nic")] = False,
    nic_class: Annotated[
        str, typer.Option("--nic-class", metavar="CLASS", help="The DeviceClass of DRANET's network devices.")
    ] = DRANET_CLASS,
    mps: MpsOption = False,
    mps_limits: MpsLimitsOption = None,
    time_slice: TimeSliceOption = None,
    isolated: IsolatedOption = False,
    admin: Annotated[
        bool, option("Access to all GPUs of a node for monitoring; other claims can still get them.", "--admin")
    ] = False,
    vm: VmOption = False,
    tolerate: Annotated[
        list[str] | None,
        option("Tolerate this taint of devices; can be repeated.", "--tolerate", metavar="KEY[=VALUE]"),
    ] = None,
    pod: Annotated[bool, option("Also write a pod that uses it.", "--pod")] = False,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas", min=1, max=MOST_NODES, help="Number of the workload's pods; each gets its own devices."
        ),
    ] = 1,
    image: ImageOption = None,
    command: CommandOption = None,
    output: TextOption = "yaml",
) -> None:
    kind = _WORKLOADS.get(str(context.info_name))
    if (pod and kind is not None) or (replicas > 1 and kind is None):
        raise InvalidInput("--replicas is for deployment, statefulset, job and jobset, --pod for claim and template")
    intent = Intent(
        form=ObjectForm(str(context.info_name)) if kind is None else ObjectForm.TEMPLATE,
        name=name,
        gpu=gpu,
        prefer=tuple(text.strip() for text in prefer.split(",")) if prefer is not None else (),
        count=count,
        same=same,
        memory=_amount(memory),
        mig=mig,
        share=parse_share(share) if share is not None else None,
        nic=with_nic,
        nic_class=nic_class,
        mps=_mps(mps, mps_limits),
        interval=_INTERVALS[time_slice] if time_slice is not None else None,
        isolated=isolated,
        admin=admin,
        vm=vm,
        tolerate=tuple(tolerate or ()),
        workload=WorkloadKind.POD if pod else kind,
        replicas=replicas,
        image=image,
        command=_words(command),
    )
    _write(intent, output)


for _form, _what, _examples in (
    ("claim", "Write a ResourceClaim. All pods that name it share its devices, and it outlives them.", _EXAMPLES),
    ("template", "Write a ResourceClaimTemplate: each pod that uses it gets its own claim.", _EXAMPLES),
    *(
        (name, f"Write a {kind}, and the template of its pods' claims.", _WORKLOAD_EXAMPLES)
        for name, kind in _WORKLOADS.items()
    ),
):
    app.command(_form, help=_what + _examples.format(_form))(request)


@app.command("class")
def offered(
    name: NameArgument = None,
    gpu: GpuOption = None,
    memory: MemoryOption = None,
    mig: MigOption = None,
    shared: Annotated[bool, option("Devices that several claims share.", "--shared")] = False,
    mps: MpsOption = False,
    mps_limits: MpsLimitsOption = None,
    time_slice: TimeSliceOption = None,
    isolated: IsolatedOption = False,
    vm: VmOption = False,
    output: TextOption = "yaml",
) -> None:
    """A DeviceClass: what an administrator offers under a name, for claims to choose from.

    \b
    Examples:
      dractl new class large.example.com --memory 80Gi --isolated
    """
    intent = Intent(
        form=ObjectForm.CLASS,
        name=name,
        gpu=gpu,
        memory=_amount(memory),
        mig=mig,
        share={} if shared else None,
        mps=_mps(mps, mps_limits),
        interval=_INTERVALS[time_slice] if time_slice is not None else None,
        isolated=isolated,
        vm=vm,
    )
    _write(intent, output)


@app.command("domain")
def domain(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of the domain.")] = "train",
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=MOST_NODES, help="Number of nodes of the Job.")] = 2,
    all_channels: Annotated[
        bool, option("All IMEX channels of the driver, not only the domain's own.", "--all-channels")
    ] = False,
    image: ImageOption = None,
    command: CommandOption = None,
    output: TextOption = "yaml",
) -> None:
    """A ComputeDomain, for pods whose GPUs share memory over NVLink between nodes, and a Job that uses it.

    \b
    Examples:
      dractl new domain train --nodes 2
    """
    program = Intent(image=image, command=_words(command))
    _print(domain_objects(name, nodes, program, all_channels=all_channels), output)


def _words(command: str | None) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command or ""))
    except ValueError as error:
        raise InvalidInput(f"{command!r}: {error}; quote it as in a shell", about="--command") from None


def _amount(text: str | None) -> str | None:
    return str(quantity(text, "--memory")) if text is not None else None


def _mps(wanted: bool, limits: str | None) -> MpsWish | None:
    if limits is not None:
        return parse_mps(limits)
    return MpsWish() if wanted else None


_NOTHING = Intent()
_NO_WISHES = ("form", "name", "workload", "replicas", "image", "command")
"""Fields that say nothing of devices."""


def _write(intent: Intent, output: str) -> None:
    _refuse(intent)
    if intent == replace(_NOTHING, **{name: getattr(intent, name) for name in _NO_WISHES}):
        intent = _asked(intent)
        _refuse(intent)
    objects = objects_of(intent)
    _print(objects, output)
    for doubt in (*notes(intent, known_gpus()), *_doubts(written(objects), intent)):
        print_message(f"note: {doubt}")


def _refuse(intent: Intent) -> None:
    if problems := refusals(intent, known_gpus()):
        raise InvalidInput("\n       ".join(problems), problems=problems)


def _print(objects: Sequence[Any], output: str) -> None:
    if output == "yaml":
        typer.echo(written(objects), nl=False)
        return
    results = [plain(obj) for obj in objects]
    print_data(results[0] if len(results) == 1 else {"apiVersion": "v1", "kind": "List", "items": results}, Format.JSON)


def _doubts(text: str, intent: Intent) -> list[str]:
    """What `dractl check` would warn of: above all, that no known GPU model can satisfy it."""
    from dra_driver.api.documents import read_documents
    from dra_driver.api.policy import PublishingPolicy
    from dra_driver.checking.check import check
    from dra_driver.checking.codes import Severity
    from dra_driver.checking.knowledge import Knowledge, sites_of_models
    from dra_driver.cli.reading.files import known_classes

    # Parts of GPU instances are published only where a policy names them.
    parts = [intent.mig] if intent.mig is not None and "c." in intent.mig else []
    policies = [PublishingPolicy.of({"mig": [{"mode": "Dynamic", "computeInstances": parts}]})]
    sites = sites_of_models((), policies if parts else ())
    findings = check(read_documents(text, "-"), Knowledge(sites=sites, classes=known_classes()))
    return list(dict.fromkeys(finding.message for finding in findings if finding.severity is not Severity.INFO))


def known_gpus() -> tuple[GpuFacts, ...]:
    """One GPU of each model that this version knows."""
    from dra_driver.checking.knowledge import inventory_of_model, model_names

    return tuple(inventory_of_model(name).gpus[0] for name in model_names())


# -- questions


def _asked(intent: Intent) -> Intent:
    """What the user answers. Raises InvalidInput without a terminal."""
    if not _somebody_is_there():
        form = intent.workload.lower() if intent.workload not in (None, WorkloadKind.POD) else intent.form
        example = f"dractl new {form} --gpu h100{'' if intent.form is ObjectForm.CLASS else ' --count 2'}"
        raise InvalidInput(
            f"say what it should be of, for example: {example}; dractl new {form} --help shows all options."
            " In a terminal it asks."
        )
    kind = _choice("What do you need?", ("a whole GPU", "a MIG device", "a share of a GPU"))
    if kind == 1:
        intent = _asked_of(intent, "mig", "Which profile, as 1g.10gb?", "1g.10gb")
    elif kind == 2:
        intent = _asked_share(intent)
    intent = _asked_of(intent, "gpu", "Which model, as h100? Leave it empty for any.", "")
    if intent.form is ObjectForm.CLASS:
        return intent
    intent = _asked_of(intent, "count", "How many?", "1", _count)
    if kind == 0 and intent.devices > 1 and typer.confirm("Connected by NVLink?", default=False, err=True):
        intent = replace(intent, same=Same.NVLINK)
    if intent.workload is None and typer.confirm("With a pod that uses it?", default=True, err=True):
        intent = replace(intent, workload=WorkloadKind.POD)
    return intent


def _text(answer: str) -> str | None:
    return answer or None


def _count(answer: str) -> int:
    if not answer.isdecimal():
        raise InvalidInput(f"{answer!r} is not a whole number")
    return int(answer)


def _asked_of(intent: Intent, field: str, text: str, default: str, read: Callable[[str], object] = _text) -> Intent:
    """With an answer that is not refused. `read` raises InvalidInput."""
    while True:
        try:
            answer = typer.prompt(text, default=default, show_default=bool(default), err=True)
            fields: dict[str, Any] = {field: read(str(answer).strip())}
            problems = refusals(answered := replace(intent, **fields), known_gpus())
        except InvalidInput as error:
            problems = (str(error),)
        if not problems:
            return answered
        for problem in problems:
            print_message(problem)


def _somebody_is_there() -> bool:
    return sys.stdin.isatty()


def _asked_share(intent: Intent) -> Intent:
    if intent.form is ObjectForm.CLASS:
        return replace(intent, share={})
    text = "How much, as cores=50,memory=8Gi or shares=1?"
    return _asked_of(intent, "share", text, "cores=50,memory=8Gi", parse_share)


def _choice(text: str, choices: Sequence[str]) -> int:
    print_message(text)
    for number, choice in enumerate(choices, 1):
        print_message(f"  {number}  {choice}")
    while not 1 <= (number := typer.prompt("Number", default=1, type=int, err=True)) <= len(choices):
        print_message(f"1 to {len(choices)}")
    return number - 1
