"""Counts the house: lines, tokens (without comments and docstrings) and files of src, its fullest folder, the files
that import more than six of their own folder, and the lines of the tests.

    python runs/size.py
"""

import ast
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mnemoscope"
BLANK = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def tokens_of(path: Path) -> int:
    """Tokens of a file without comments and the strings that stand alone."""
    alone = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    with path.open("rb") as file:
        return sum(token.type not in BLANK and token.start not in alone for token in tokenize.tokenize(file.readline))


def own_imports(path: Path) -> int:
    """How many modules of its own folder a file imports."""
    folder = ".".join(path.relative_to(SOURCE.parent).parent.parts)
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return sum((path.parent / f"{name.removeprefix(folder + '.')}.py").is_file() for name in found)


def main() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    print(f"src: {sum(lines.values()):,} lines, {sum(map(tokens_of, files)):,} tokens, {len(files)} files")
    folder, most = Counter(path.parent for path in files if path.name != "__init__.py").most_common(1)[0]
    print(f"fullest folder: {folder.relative_to(SOURCE)} with {most} files")
    counted = (path for path in files if path.stem not in ("__init__", "stages", "contents"))
    many = {path: count for path in counted if (count := own_imports(path)) > 6}
    print(f"imports of one's own folder, above 6: {len(many)}")
    for path, count in sorted(many.items(), key=lambda item: -item[1]):
        print(f"  {count} {path.relative_to(SOURCE)}")
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    print(f"tests: {tests:,} lines")


if __name__ == "__main__":
    main()
