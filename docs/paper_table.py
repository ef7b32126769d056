"""Fills the table of docs/paper.md from the answers of two atlases: the demo's, and the replica's of runs/paper.sh.

    python docs/paper_table.py DEMO_ATLAS REPLICA_ATLAS

Both must have been analysed (`mnemoscope analyze`). What stands between the markers is replaced; the column of an atlas
that is given as `-` stays as it is. The rest of the page is written by hand.
"""

import json
import sys
from pathlib import Path
from typing import Any

from mnemoscope.questions import QUESTIONS, load_question
from mnemoscope.questions.question import LITERAL

PAGE = Path(__file__).parent / "paper.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def totals(atlas: Path, question: str) -> dict[str, dict[str, Any]]:
    """The totals of one answer by name; none where the atlas lacks it."""
    path = atlas / "analyses" / f"{question}.json"
    return {row["name"]: row for row in json.loads(path.read_text())["totals"]} if path.is_file() else {}


def spoken(rows: dict[str, dict[str, Any]], name: str, form: str) -> str:
    """A number with its interval, or a dash; first by the paper's own formula, where that is another one."""
    said = []
    for row in (rows[one] for one in (LITERAL + name, name) if one in rows):
        numbers = [row[one] for one in ("value", "low", "high") if row[one] is not None]
        ends = [f"{100 * number:.3g} %" if form == "share" else f"{number:.3g}" for number in numbers]
        said.append(ends[0] if len(ends) == 1 else f"{ends[0]} ({ends[1]} to {ends[2]})" if ends else "-")
    return "; ours ".join(said) if any(one != "-" for one in said) else "-"


def column(page: str, place: int) -> dict[str, str]:
    """One column of the table that stands in the page, by the claim of each row."""
    rows = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| Figure ")]
    return {row[0]: row[place] for row in rows}


def table(demo: Path | None, replica: Path | None, page: str) -> str:
    """The claims as Markdown, in the paper's order; an atlas that is None has its numbers from `page`."""
    atlases, kept = (demo, replica), (column(page, 2), column(page, 3))
    lines = ["| the paper | its number | built-in model | replica | answered by |", "|---|---|---|---|---|"]
    for question in QUESTIONS:
        asked = load_question(question).paper
        found = [None if atlas is None else totals(atlas, question) for atlas in atlases]
        for claim in asked.claims if asked.figure.startswith("Figure") else ():
            said = f"{asked.figure}: {claim.text}"
            source = f"[{question}](../src/mnemoscope/questions/paper/{question}.py)"
            numbers = [
                before.get(said, "-") if own is None else spoken(own, claim.name, claim.form)
                for own, before in zip(found, kept, strict=True)
            ]
            if {str(claim.paper), *numbers} == {"-"}:  # not the paper's, and of other kinds of models
                continue
            lines.append(f"| {' | '.join([said, str(claim.paper), *numbers, source])} |")
    return "\n".join(lines)


def main() -> None:
    """Rewrites the page."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    page = PAGE.read_text()
    demo, replica = (None if name == "-" else Path(name) for name in sys.argv[1:])
    found = table(demo, replica, page)
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
