"""A socket in the place of systemd's own, which keeps the first call that a program makes there."""

import os
import select
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_HEADER_BYTES = 16


def first_call(command: Sequence[str]) -> tuple[bytes, str]:
    """Run `command`, which calls the user's systemd: the call's bytes, and what the command printed without an answer.

    Source: the D-Bus specification, "Authentication Protocol" and "Message Protocol".
    """
    # Not below the test's folder: a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="bus-") as folder, socket.socket(socket.AF_UNIX) as listener:
        place = Path(folder, "systemd/private")
        place.parent.mkdir()
        listener.bind(str(place))
        listener.listen()
        environment = {"XDG_RUNTIME_DIR": folder, "PATH": os.defpath}
        with subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            call = b""
            while not call and process.poll() is None:
                if select.select([listener], [], [], 0.02)[0]:
                    with listener.accept()[0] as connection:
                        connection.settimeout(10)
                        call = _call(connection)
            output, _ = process.communicate(timeout=20)
    return call, output


def _call(connection: socket.socket) -> bytes:
    received = connection.recv(4096)
    connection.sendall(b"DATA\r\nOK 0123456789abcdef0123456789abcdef\r\nAGREE_UNIX_FD\r\n")
    while b"BEGIN\r\n" not in received:
        received += connection.recv(4096)
    call = received.partition(b"BEGIN\r\n")[2]
    while len(call) < _HEADER_BYTES or len(call) < _length(call):
        call += connection.recv(65536)
    return call


def _length(call: bytes) -> int:
    """Of a message in little-endian order: its body, and the fields before it up to a multiple of 8."""
    body, fields = int.from_bytes(call[4:8], "little"), int.from_bytes(call[12:16], "little")
    return _HEADER_BYTES + (fields + 7) // 8 * 8 + body
