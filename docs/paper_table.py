"""Fills the table of docs/paper.md from the answers of two atlases: the demo's, and the replica's of runs/paper.sh.

    python docs/paper_table.py DEMO_ATLAS [REPLICA_ATLAS]

Both must have been analysed (`mnemoscope analyze`). What stands between the markers is replaced; without the replica's
atlas its column stays as it is. The rest of the page is written by hand.
"""

import json
import sys
from pathlib import Path
from typing import Any

from mnemoscope.questions import QUESTIONS, load_question

PAGE = Path(__file__).parent / "paper.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def totals(atlas: Path, question: str) -> dict[str, dict[str, Any]]:
    """The totals of one answer by name; none where the atlas lacks it."""
    path = atlas / "analyses" / f"{question}.json"
    return {row["name"]: row for row in json.loads(path.read_text())["totals"]} if path.is_file() else {}


def spoken(row: dict[str, Any] | None, form: str) -> str:
    """A number with its interval, or a dash."""
    if row is None or row["value"] is None:
        return "-"

    def number(value: float) -> str:
        return f"{100 * value:.3g} %" if form == "share" else f"{value:.3g}"

    if row["low"] is None:
        return number(row["value"])
    return f"{number(row['value'])} ({number(row['low'])} to {number(row['high'])})"


def column(page: str, place: int) -> dict[str, str]:
    """One column of the table that stands in the page, by the claim of each row."""
    rows = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| Figure ")]
    return {row[0]: row[place] for row in rows}


def table(demo: Path, replica: Path | None, page: str) -> str:
    """The claims as Markdown, in the paper's order; without `replica` with its numbers from `page`."""
    kept = column(page, 3)
    lines = ["| the paper | its number | built-in model | replica | answered by |", "|---|---|---|---|---|"]
    for question in QUESTIONS:
        asked = load_question(question).paper
        own, other = totals(demo, question), {} if replica is None else totals(replica, question)
        for claim in asked.claims:
            said, source = f"{asked.figure}: {claim.text}", f"[{question}](../src/mnemoscope/questions/{question}.py)"
            theirs = kept[said] if replica is None else spoken(other.get(claim.name), claim.form)
            lines.append(
                f"| {said} | {claim.paper} | {spoken(own.get(claim.name), claim.form)} | {theirs} | {source} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Rewrites the page."""
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    atlases, page = [Path(name) for name in sys.argv[1:]], PAGE.read_text()
    found = table(atlases[0], atlases[1] if len(atlases) > 1 else None, page)
    before, rest = page.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{found}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
