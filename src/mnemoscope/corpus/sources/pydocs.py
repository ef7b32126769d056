"""The built-in corpus: the English documentation that every machine with this package already has.

Three kinds of document, all read as text (`ast` parses the sources; nothing is imported or run):

* the language reference topics of `pydoc_data` (one document a topic),
* the docstrings of the standard library,
* the docstrings of the package's own dependencies, also those that C extensions receive through calls such as
  `add_docstr(function, "text")`.

Part `stdlib` is the first two kinds, `all` everything. Exact repeats are dropped, and so are documents that are too
short or hold too little prose. The order is fixed: topics, standard library, then distributions by name, files by path,
lines. A list beside this file names the documents kept out of training by hash, because the text itself differs a
little between Python releases.
"""

import ast
import hashlib
import importlib.metadata
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from importlib.resources import files
from itertools import chain
from pathlib import Path

from mnemoscope.errors import CorpusNotFound
from mnemoscope.foundation.files import digest_of_files

# Dependencies, direct and transitive, whose sources carry documentation; those not installed are skipped.
DISTRIBUTIONS = (
    "anyio",
    "click",
    "datasets",
    "dill",
    "filelock",
    "fsspec",
    "huggingface_hub",
    "Jinja2",
    "markdown-it-py",
    "mpmath",
    "multiprocess",
    "networkx",
    "numpy",
    "packaging",
    "pandas",
    "polars",
    "psutil",
    "pyarrow",
    "pydantic",
    "Pygments",
    "python-dateutil",
    "PyYAML",
    "rich",
    "safetensors",
    "setuptools",
    "sympy",
    "tokenizers",
    "torch",
    "tqdm",
    "transformers",
    "typer",
)

SHORTEST = 40

_SKIPPED_FOLDERS = re.compile(
    r"(^|/)(tests?|testing|_test|idle_test|site-packages|dist-packages|__pycache__|_vendor|_distutils_hack|lib2to3)(/|$)"
)
_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LETTER = re.compile(r"[A-Za-z]")
_RECEIVERS = frozenset({"add_docstr", "_add_docstr", "add_newdoc", "add_docstring", "add_docstr_all", "_doc"})


def document_key(text: str) -> str:
    """A document's name in the list of held-out ones: 16 hexadecimal digits of its blake2b hash."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def held_out_hashes() -> frozenset[str]:
    """The keys (`document_key`) of the documents that training held out; empty before the first training."""
    listed = files("mnemoscope.corpus") / "held_out.txt"
    return frozenset(listed.read_text("ascii").split() if listed.is_file() else ())


def documents(part: str = "all") -> Iterator[str]:
    """The documents of one part (`stdlib` or `all`), in a fixed order, without repeats."""
    seen: set[bytes] = set()
    listed = [node.value for node in _parse(_topics_file()).body if isinstance(node, ast.Assign)]
    entries = [entry for table in listed if isinstance(table, ast.Dict) for entry in table.values]
    topics = [one.value for one in entries if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    for raw in chain(topics, chain.from_iterable(map(_docstrings, _source_files(part)))):
        text = clean(raw)
        if not is_prose(text):
            continue
        key = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if key not in seen:
            seen.add(key)
            yield text


def clean(raw: str) -> str:
    text = inspect.cleandoc(raw.replace("\r\n", "\n"))
    if text.isascii():
        text = _CONTROL.sub("", text)
    else:
        text = "".join(c for c in text if c in "\n\t" or (c.isprintable() and ord(c) < 0xE000))
    lines = [line.rstrip() for line in text.split("\n")]
    lines = [line for line in lines if not line or re.search(r"\w", line) or len(set(line.strip())) > 2]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def is_prose(text: str) -> bool:
    if len(text) < SHORTEST or " " not in text:
        return False
    return len(_LETTER.findall(text)) >= 0.5 * len(text.replace(" ", "").replace("\n", ""))


def sources_digest(part: str) -> str:
    """A digest of the sources of a part: names, sizes and dates, which differ between Python or package versions."""
    return digest_of_files([_topics_file(), *_source_files(part)])


def _topics_file() -> Path:
    return Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"


def _source_files(part: str) -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    if not library.is_dir():
        raise CorpusNotFound(f"the standard library's sources are not at {library}; builtin:pydocs needs them")
    inside: dict[str, Path] = {}
    for folder, inner, names in os.walk(library):
        # Skipped folders are not walked: site-packages may hold a hundred times as many files.
        inner[:] = [name for name in inner if not _SKIPPED_FOLDERS.search(name)]
        paths = [Path(folder, name) for name in names if name.endswith(".py")]
        inside |= {path.relative_to(library).as_posix(): path for path in paths}
    files = [inside[name] for name in sorted(inside) if not name.startswith("pydoc_data")]
    return files + [path for name in DISTRIBUTIONS if part == "all" for path in _sources(name)]


def _sources(distribution: str) -> list[Path]:
    try:
        listed = importlib.metadata.distribution(distribution).files or []
    except importlib.metadata.PackageNotFoundError:
        return []
    sources = [entry for entry in listed if entry.suffix in (".py", ".pyi")]
    kept = [entry for entry in sources if not _SKIPPED_FOLDERS.search(str(entry))]
    return [Path(str(entry.locate())) for entry in sorted(kept, key=str)]


def _docstrings(path: Path) -> list[str]:
    texts: list[tuple[int, str]] = []
    waiting: list[ast.AST] = [_parse(path)]
    while waiting:
        node = waiting.pop()
        # Statements only: expressions, most of a tree, hold neither docstrings nor receivers.
        waiting += (child for child in ast.iter_child_nodes(node) if isinstance(child, _STATEMENTS))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                texts.append((getattr(node, "lineno", 0), text))
        elif isinstance(node, ast.Expr | ast.Assign) and isinstance(call := node.value, ast.Call):
            callee = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            arguments = call.args if callee in _RECEIVERS else []
            leaves = [leaf for each in arguments for leaf in ast.walk(each) if isinstance(leaf, ast.Constant)]
            texts += [(one.lineno, one.value) for one in leaves if isinstance(one.value, str) and "\n" in one.value]
    return [text for _, text in sorted(texts)]


def _parse(path: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escape sequences in foreign sources
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            return ast.Module(body=[], type_ignores=[])
