import re
import subprocess
import sys

LIBRARIES = """
import re, ssl, sqlite3, threading
from pathlib import Path
from dra_driver.runtime import memory

def clean_kib():
    "Resident pages of libraries that are as in their files."
    text = Path("/proc/self/smaps").read_text()
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", text, flags=re.MULTILINE)
    clean = [part for part in mappings if ".so" in part.partition("\\n")[0]]
    figure = re.compile(r"^(?:Shared|Private)_Clean: +(\\d+)", re.MULTILINE)
    return sum(int(kib) for part in clean for kib in figure.findall(part))

def use():
    ssl.create_default_context()
    database = sqlite3.connect(":memory:")
    assert database.execute("select upper('a') || 1.5").fetchone() == ("A1.5",)

use()
memory.limit()
before = clean_kib()
memory.settle()
print(before, clean_kib())
use()
thread = threading.Thread(target=use)
thread.start()
thread.join()
import lzma, decimal
assert lzma.decompress(lzma.compress(b"text")) == b"text"
assert decimal.Decimal("0.1") + 1 == decimal.Decimal("1.1")
print("all works")
"""


def python(program: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], env={**variables}, capture_output=True, text=True, check=True
    ).stdout


def test_pages_of_libraries_are_let_go_and_return_when_they_are_used() -> None:
    figures, works = python(LIBRARIES, PYTHONPATH=":".join(sys.path)).splitlines()
    before, after = map(int, re.findall(r"\d+", figures))
    assert works == "all works" and after < before / 3
