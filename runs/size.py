"""Counts the house: lines (without comments), tokens (without comments and docstrings) and files of src, its fullest
folder, and the lines of the tests.

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


def main() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    lines = sum(not line.lstrip().startswith("#") for path in files for line in path.read_text("utf-8").splitlines())
    print(f"src: {lines:,} lines, {sum(map(tokens_of, files)):,} tokens, {len(files)} files")
    folder, most = Counter(path.parent for path in files if path.name != "__init__.py").most_common(1)[0]
    print(f"fullest folder: {folder.relative_to(SOURCE)} with {most} files")
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))
    print(f"tests: {tests:,} lines")


if __name__ == "__main__":
    main()
