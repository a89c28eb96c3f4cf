import subprocess
import sys

LIBRARIES = """
import asyncio, re, ssl, sqlite3, threading
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
used = clean_kib()
memory._FIRST_WORK_S = 0.0
asyncio.run(memory.settle_later())
print(used, clean_kib())
thread = threading.Thread(target=use)
thread.start()
thread.join()
import lzma, decimal
assert lzma.decompress(lzma.compress(b"text")) == b"text"
assert decimal.Decimal("0.1") + 1 == decimal.Decimal("1.1")
print("all works")
"""


BUFFERS = """
import asyncio, ssl
from asyncio import sslproto
from dra_driver.runtime import memory

memory.limit()

async def main():
    context = ssl.create_default_context()
    protocol = sslproto.SSLProtocol(asyncio.get_running_loop(), asyncio.Protocol(), context, None, server_hostname="a")
    print(len(protocol.get_buffer(-1)))

asyncio.run(main())
"""


def python(program: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], env={**variables}, capture_output=True, text=True, check=True
    ).stdout


def test_pages_of_libraries_are_let_go_and_return_when_they_are_used() -> None:
    settled, later, works = python(LIBRARIES, PYTHONPATH=":".join(sys.path)).splitlines()
    before, after = map(int, settled.split())
    used, after_first_work = map(int, later.split())
    assert works == "all works"
    assert after < before / 3 and after < used and after_first_work < used


def test_a_tls_connection_reserves_little() -> None:
    assert int(python(BUFFERS, PYTHONPATH=":".join(sys.path))) == 64 * 1024
