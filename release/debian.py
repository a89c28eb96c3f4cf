"""The base image: Debian with the Python that the programs run on, made of packages from a Debian mirror.

apt downloads the packages and checks their signatures; dpkg-deb unpacks them. No script of a package runs, so no rights
and no machine of that architecture are needed; the few files that these scripts would write are written here.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SUITE = "trixie"
PYTHON = "3.13"
"""Of that suite; wheels are chosen for it."""

ROOTS = (
    "base-files",
    "ca-certificates",
    "coreutils",
    "dash",
    "libpython3.13-stdlib",
    # Of wheels: gRPC and RE2.
    "libstdc++6",
    "python3.13-minimal",
)
"""apt adds what they depend on. With a shell and `ls`, people can look into a container."""

ARCHITECTURES: Mapping[str, str] = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
"""Debian's names, which are also those of OCI, and the folders of their libraries."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_NOT_NEEDED = ("usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bash-completion")


class CannotBuild(Exception):
    """What is missing on this machine, and what to do."""


@dataclass(frozen=True)
class Package:
    """An installed Debian package; `architecture` is `all` for some."""

    name: str
    version: str
    architecture: str


def mirrors(given: str | None) -> tuple[str, str]:
    """URLs of Debian and of its security updates: `given` and its neighbor, or those that apt uses on this machine.

    Raises `CannotBuild` if this is not a Debian machine and none is given.
    """
    _need("apt-get", "dpkg-deb")
    if not KEYRING.exists():
        raise CannotBuild(f"{KEYRING} is missing: install the package debian-archive-keyring")
    if given:
        plain = given.rstrip("/")
        return plain, f"{plain}-security"
    mirrors_of_apt = dict(
        line.split("\t")
        for line in _run("apt-get", "indextargets", "--format", "$(LABEL)\t$(REPO_URI)").splitlines()
        if line.startswith("Debian")
    )
    if "Debian" not in mirrors_of_apt:
        raise CannotBuild(
            "apt on this machine has no lists of a Debian mirror: run `apt-get update`, or name a mirror with "
            "`make image MIRROR=URL`"
        )
    return mirrors_of_apt["Debian"].rstrip("/"), mirrors_of_apt.get(
        "Debian-Security", f"{mirrors_of_apt['Debian'].rstrip('/')}-security"
    )


def write_base(root: Path, architecture: str, from_mirrors: tuple[str, str], work: Path) -> tuple[Package, ...]:
    """Unpacks the base into the empty folder `root`, and answers the packages, by name. `work` keeps downloads."""
    files = _downloaded(architecture, from_mirrors, work)
    packages = []
    # Links such as /bin come first, because files of others lie behind them.
    for file in sorted(files, key=lambda file: (not file.name.startswith("base-files_"), file.name)):
        _run("dpkg-deb", "--extract", str(file), str(root))
        fields = _run("dpkg-deb", "--field", str(file))
        name, version, own = (_field(fields, key) for key in ("Package", "Version", "Architecture"))
        packages.append(Package(name, version, own))
        # Where scanners look in images without dpkg.
        status = root / "var/lib/dpkg/status.d" / name
        status.parent.mkdir(parents=True, exist_ok=True)
        status.write_text(fields)
    for folder in _NOT_NEEDED:
        shutil.rmtree(root / folder, ignore_errors=True)
    _configure(root)
    return tuple(sorted(packages, key=lambda package: package.name))


def _downloaded(architecture: str, from_mirrors: tuple[str, str], work: Path) -> Sequence[Path]:
    """All packages of the base, by an apt that knows nothing of this machine."""
    archives = work / "cache" / "archives"
    for folder in (work / "lists" / "partial", archives / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    main, security = from_mirrors
    lines = [f"{main} {SUITE}", f"{main} {SUITE}-updates", f"{security} {SUITE}-security"]
    (work / "sources.list").write_text("".join(f"deb [signed-by={KEYRING}] {line} main\n" for line in lines))
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "0",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "1",
        "Dir::State": work,
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::parts": "-",
        # As root, apt else downloads as a user who cannot write here.
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{key}={value}" for key, value in settings.items())]
    # A mirror that cannot be reached is only a warning otherwise, and yesterday's lists would do.
    _run(*apt, "-oAPT::Update::Error-Mode=any", "update")
    shutil.rmtree(archives)
    (archives / "partial").mkdir(parents=True)
    _run(*apt, "--yes", "--download-only", "install", *ROOTS)
    return sorted(archives.glob("*.deb"))


def _configure(root: Path) -> None:
    """What scripts of packages would do, as far as the programs need it."""
    etc = root / "etc"
    (etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    (etc / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n")
    (etc / "group").write_text("root:x:0:\nnogroup:x:65534:\n")
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = etc / "ssl" / "certs" / "ca-certificates.crt"
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_text("".join(certificate.read_text() for certificate in certificates))


def interpreter(root: Path, architecture: str) -> list[str]:
    """A command that runs the Python of `root` on this machine, which has the same architecture."""
    libraries = root / "usr/lib" / ARCHITECTURES[architecture]
    (loader,) = libraries.glob("ld-linux-*.so.*")
    return [str(loader), "--library-path", str(libraries), str(root / f"usr/bin/python{PYTHON}")]


def _need(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise CannotBuild(
            f"{' and '.join(missing)} not found: the base image is made of Debian packages. Use a Debian or Ubuntu "
            "machine, or build the Dockerfile with a container engine"
        )


def _field(fields: str, key: str) -> str:
    (value,) = [line.partition(": ")[2] for line in fields.splitlines() if line.startswith(f"{key}: ")]
    return value


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode:
        raise CannotBuild(f"{words[0]} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
