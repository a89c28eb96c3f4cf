"""In which encoding the text of a manifest is: UTF-8 nearly always, UTF-16 where a shell of Windows wrote it.

A text and its bytes are the same thing here, byte order mark included: what was decoded and is encoded again has the
same bytes wherever the text is the same. Source: YAML 1.2.2, section 5.2.
"""

UTF_8 = "utf-8"
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
_ZEROS = (
    ((False, True, True, True), "utf-32-le"),
    ((True, True, True, False), "utf-32-be"),
    ((False, True), "utf-16-le"),
    ((True, False), "utf-16-be"),
)
"""Of a text without a mark, whose first character is one of ASCII: which of its first bytes are zero."""
_PLAIN = frozenset(b"\t\n\r") | frozenset(range(0x20, 0x7F))


def encoding_of(data: bytes) -> str:
    """As Python calls it; those that have a byte order mark keep it in their text."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name
    for zeros, name in _ZEROS:
        first = data[: len(zeros)]
        if tuple(byte == 0 for byte in first) == zeros and max(first) in _PLAIN:
            return name
    return UTF_8


def title(encoding: str) -> str:
    """`UTF-16`."""
    return encoding.upper().removesuffix("-LE").removesuffix("-BE")
