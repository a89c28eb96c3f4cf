"""A manifest in UTF-16 is migrated like any other, and stays in UTF-16: its bytes change where its text changes."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dractl import run
from support.rows import slow_but

from dra_driver.cli.encodings import encoding_of, title
from dra_driver.terminal import Status

POD = """# Für alle: 一 GPU 🚀
apiVersion: v1
kind: Pod
metadata:
  name: p # ünï
spec:
  containers:
  - name: m
    image: i
    resources:
      limits:
        nvidia.com/gpu: 1 # eins
"""
ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
CASES = list(itertools.product(ENCODINGS, ("", "\ufeff"), ("\n", "\r\n")))


@given(
    encoding=st.sampled_from(ENCODINGS), first=st.sampled_from("#a{-\ufeff"), rest=st.text(st.characters(codec="utf-8"))
)
def test_what_is_decoded_and_encoded_again_has_the_same_bytes(encoding: str, first: str, rest: str) -> None:
    """Of texts that begin as manifests do: with a byte order mark, or a character of ASCII and another that is not
    zero."""
    data = (first + (rest.lstrip("\0") or "a")).encode(encoding)
    assert encoding_of(data) == encoding
    assert data.decode(encoding).encode(encoding) == data


@pytest.mark.parametrize(("encoding", "mark", "ends"), CASES)
@pytest.mark.parametrize("way", slow_but(["--in-place", "-o"], "--in-place"))
def test_a_file_keeps_its_encoding(tmp_path: Path, encoding: str, mark: str, ends: str, way: str) -> None:
    """What comes out is what comes out of the same text in UTF-8, and the way back ends where it began."""
    text = mark + POD.replace("\n", ends)
    before = text.encode(encoding)
    found = {}
    for name in ("utf-8", encoding):
        folder = tmp_path / f"of-{name}"
        folder.mkdir(exist_ok=True)
        file, out = folder / "pod.yaml", folder / "out"
        file.write_bytes(text.encode(name))
        to = (way,) if way == "--in-place" else (way, str(out))
        outcome = run("migrate", str(file), "--strategy", "claims", *to)
        assert outcome.exit_code == Status.DONE, outcome.output
        found[name] = file if way == "--in-place" else out / "manifests" / "pod.yaml"
    after = found[encoding].read_bytes()
    assert after != before
    assert after == found["utf-8"].read_bytes().decode("utf-8").encode(encoding)
    assert run("migrate", str(found[encoding]), "--undo", "--in-place").exit_code == Status.DONE
    assert found[encoding].read_bytes() == before


def test_a_diff_says_which_files_patch_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_bytes(POD.encode("utf-16"))
    outcome = run("migrate", str(tmp_path), "--strategy", "claims", "--diff")
    assert "+  resourceClaims:" in outcome.stdout
    assert "pod.yaml is UTF-16, which `patch` does not read" in " ".join(outcome.stderr.split())


def test_one_stream_of_documents_has_one_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(POD.encode("utf-8-sig"))
    (tmp_path / "b.yaml").write_bytes(POD.replace("name: p", "name: q").encode("utf-16"))
    outcome = run("migrate", str(tmp_path), "--strategy", "claims", "-o", "-")
    assert "\ufeff" not in outcome.stdout
    assert outcome.stdout.count("一 GPU 🚀") == 2


def test_encodings_are_called_as_people_do() -> None:
    assert [title(one) for one in ("utf-8", "utf-16-le", "utf-32-be")] == ["UTF-8", "UTF-16", "UTF-32"]
