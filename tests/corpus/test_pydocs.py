"""The built-in corpus on planted sources: read as text, in a fixed order, nothing imported or run."""

import hashlib
import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from mnemoscope.corpus.sources import pydocs
from mnemoscope.corpus.sources.pydocs import clean, document_key, documents, held_out_hashes, is_prose
from mnemoscope.errors import CorpusNotFound
from support.corpus_reference import Letters, make

TRAP = "raise SystemExit('this file was run')\n"


def prose(name: str) -> str:
    """A docstring that is long enough, and unlike every other."""
    return f"The text of {name} says what {name} is for and then a little more about {name}."


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library and two installed distributions, made up; every file ends the process that runs it."""
    library, site = tmp_path / "lib", tmp_path / "site"
    write(library / "pydoc_data" / "topics.py", f"topics = {{'if': {prose('if')!r}, 'for': {prose('for')!r}}}\n{TRAP}")
    write(library / "zebra.py", f'"""{prose("zebra")}"""\n{TRAP}')
    write(library / "apes" / "gibbon.py", f'{TRAP}\ndef sing():\n    """{prose("sing")}"""\n')
    write(library / "broken.py", "def half(:\n")
    write(library / "noise.py", "\x00\x01")
    (library / "latin.py").write_bytes(b'"""' + b"\xff" * 60 + b'"""')
    write(library / "test" / "test_x.py", f'"""{prose("a test")}"""\n')
    write(library / "site-packages" / "other.py", f'"""{prose("a stranger")}"""\n')
    for name in ("rich", "click"):
        info = site / f"{name}-1.0.dist-info"
        write(info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        listed = [f"{name}/b.py", f"{name}/a.pyi", f"{name}/tests/t.py", f"{name}/x.so", f"{name}/missing.py"]
        write(info / "RECORD", "".join(f"{entry},,\n" for entry in listed))
        for entry in listed[:4]:
            write(site / entry, f'"""{prose(entry)}"""\n{TRAP}')
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(library))
    return tmp_path


STANDARD = [prose(name) for name in ("if", "for", "sing", "zebra")]
INSTALLED = [prose(name) for name in ("click/a.pyi", "click/b.py", "rich/a.pyi", "rich/b.py")]


def test_the_order_is_topics_library_and_distributions_by_name_without_repeats(machine: Path) -> None:
    assert list(documents("stdlib")) == STANDARD
    assert list(documents("all")) == STANDARD + INSTALLED
    assert list(documents("all")) == list(documents())
    write(machine / "lib" / "again.py", f'"""\n    {prose("zebra")}   \n"""\ndef f():\n    """{prose("zebra")}"""\n')
    assert sorted(documents("stdlib")) == sorted(STANDARD)


def test_a_machine_without_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "nowhere"))
    with pytest.raises(CorpusNotFound, match="the standard library's sources are not at"):
        list(documents("stdlib"))


def test_every_kind_of_docstring_is_found_in_order_of_lines(machine: Path) -> None:
    write(
        machine / "lib" / "kinds.py",
        f'''"""{prose("module")}"""
class Thing:
    """{prose("class")}"""
    async def act(self):
        """{prose("coroutine")}"""
        def inner(): "{prose("inner")}"
        "{prose("a mere string")}"
add_docstr(thing, """{prose("receiver")}
on two lines""")
other.add_newdoc("place", ("name", """
    {prose("nested")}
    """))
print("""{prose("no receiver")}
on two lines""")
''',
    )
    found = [text for text in documents("stdlib") if text not in STANDARD]
    names = ("module", "class", "coroutine", "inner")
    assert found == [*map(prose, names), f"{prose('receiver')}\non two lines", prose("nested")]


def test_texts_are_cleaned() -> None:
    raw = "First line.   \r\n\r\n\r\n\r\n    Indented\x07 text stays.\n    =========\n    a - b\n\n"
    assert clean(raw) == "First line.\n\nIndented text stays.\na - b"
    assert clean("No\n=-=-=\n+-*/\nno") == "No\n+-*/\nno"  # what is of one or two signs is a ruler, unless it is a word
    # Nor, in other alphabets, what has no width, is for private use or a picture.
    raw = "Caf\u00e9\x07\u200b \ue000\uff01\U0001f600au lait\nand \u65e5\u672c"
    assert clean(raw) == "Caf\u00e9 au lait\nand \u65e5\u672c"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Words enough to be read as a piece of documentation.", True),
        ("Too short.", False),
        ("Forty characters of prose are just so ma", True),
        ("Thirtynine characters of prose are not.", False),
        (f"{'a' * 20} {'1' * 20}", True),  # half are letters, blanks and ends of lines aside
        (f"{'a' * 20}\n{'1' * 10} {'.' * 11}", False),
        ("x" * 80, False),
        ("0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20", False),
        ("\u65e5\u672c\u8a9e \u306e \u6587\u66f8 " * 12, False),
    ],
)
def test_only_prose_is_kept(text: str, kept: bool) -> None:
    assert is_prose(text) is kept


def test_the_listed_documents_and_no_others_are_held_out(machine: Path, monkeypatch: Any, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setattr(pydocs, "files", lambda name: package)
    assert held_out_hashes() == frozenset()
    out = {prose("for"), prose("rich/b.py")}
    (package / "held_out.txt").write_text("".join(f"{document_key(text)}\n" for text in sorted(out)) + "0" * 16 + "\n")
    assert held_out_hashes() == {document_key(text) for text in out} | {"0" * 16}
    for part, expected in (("builtin:pydocs", out), ("builtin:pydocs:stdlib", {prose("for")})):
        copy = make(part, tmp_path / part.replace(":", "-"), encoder=Letters(), longest=200, vocabulary=128)
        assert {copy.text(i) for i in range(copy.sentences) if copy.held_out[i]} == expected
        assert copy.counts["held_out_documents"] == len(expected)


def test_keys_are_sixteen_digits_of_the_text_s_hash() -> None:
    assert document_key("a\u00e9") == hashlib.blake2b(b"a\xc3\xa9", digest_size=8).hexdigest()


def test_this_machine_s_library_is_read_and_not_run() -> None:
    script = (
        "import json, sys\nfrom itertools import islice\nfrom mnemoscope.corpus.sources.pydocs import documents\n"
        "before = set(sys.modules)\nfound = list(islice(documents('stdlib'), 400))\n"
        "print(json.dumps([sorted(set(sys.modules) - before), found]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    imported, found = json.loads(done.stdout)
    assert [name for name in imported if not name.startswith("_sysconfigdata")] == []
    assert len(set(found)) == 400
    assert any("assert" in text and "statement" in text for text in found)
    assert all(text == text.strip() and len(text) >= 40 for text in found)
