"""Scalars of manifests: what is a text, a number, a truth value or nothing."""

from support.rows import rows

from dra_driver.api.documents import read_documents


@rows(
    "written, value",
    [
        ("yes", True),
        ("off", False),
        ("~", None),
        ("", None),
        ("0o17", 15),
        ("017", 15),
        ("0x1F", 31),
        ("1e3", 1000.0),
        ("1_000", 1000),
        ("1_000.5", 1000.5),
        (".5_0", ".5_0"),
        ("18446744073709551616", 2.0**64),
        ("1e999", "1e999"),
        ("9" * 350, "9" * 350),
        ("0x" + "f" * 20, "0x" + "f" * 20),
        ("1:30", "1:30"),
        ("2026-01-02", "2026-01-02"),
        ("40Gi", "40Gi"),
        ("'7'", "7"),
        ("!!str 7", "7"),
        ("+", "+"),
    ],
)
def test_scalars_are_what_the_api_server_takes_them_for(written: str, value: object) -> None:
    (document,) = read_documents(f"a: {written}\n", "f").documents
    assert document.obj == {"a": value}
