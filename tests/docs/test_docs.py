"""What the pages tell readers to type: every command parses, the cheap ones run as written."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

import mnemoscope as ms
from mnemoscope.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", *sorted((ROOT / "docs").glob("*.md"))]


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFRESH = _module("refresh")


def commands_of(page: str) -> list[str]:
    """Every `mnemoscope VERB ...` of a page: in fenced blocks a line each, in running text between backquotes."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in fenced for line in block.splitlines()]
    inline = re.findall(r"`(mnemoscope [^`]+)`", re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE))
    return [line for line in [*lines, *(" ".join(text.split()) for text in inline)] if line.startswith("mnemoscope ")]


def test_every_page_stands_in_the_site_s_contents() -> None:
    contents = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert f'"docs/{page.stem}"' in contents, page.name


def test_llms_txt_is_in_the_site_and_names_pages_that_are() -> None:
    assert 'html_extra_path = ["llms.txt"]' in (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# Mnemoscope\n\n> .+\n", text)
    named = re.findall(r"^- \[.+\]\((.+)\.html\)$", text, re.MULTILINE)
    assert len(named) == text.count("\n- ")
    assert [name for name in named if not (ROOT / f"{name}.md").is_file()] == []


def cases() -> list[Any]:
    found = [(page, command) for page in PAGES for command in commands_of(page.read_text(encoding="utf-8"))]
    shown = [(page, command) for page, command in found if page.name != "cli.md"]
    return [pytest.param(command, id=f"{page.name}: {command}") for page, command in dict.fromkeys(shown)]


def check(command: str) -> None:
    """Raises what typer raises for a command that does not parse; runs nothing."""
    words = shlex.split(command, comments=True)
    words = words[1 : next((i for i, word in enumerate(words) if word in (">", "|", "&&", "2>&1")), None)]
    verb = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    if len(words) > 1:  # a bare name in running text names the verb
        verb.make_context(words[0], words[1:], resilient_parsing=False)


@pytest.mark.parametrize("command", cases())
def test_every_command_parses(command: str) -> None:
    check(command)


@pytest.mark.parametrize("command", ["mnemoscope mine a b --out c --bad", "mnemoscope mine a", "mnemoscope dance"])
def test_a_command_that_does_not_parse_is_found(command: str) -> None:
    with pytest.raises((typer.TyperException, KeyError)):
        check(command)


def test_the_pages_hold_commands() -> None:
    verbs = {str(case.values[0]).split()[1] for case in cases()}
    assert verbs >= {"demo", "inspect", "mine", "show", "merge", "verify", "train"}


@pytest.mark.full
def test_the_cheap_commands_run_as_written(tmp_path: Path) -> None:
    """The tour's commands on the planted model, in order, refused ones included; the pages show what they print."""
    page = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    # Of those that load a model, which takes seconds, only the first.
    dear = ("builtin", "demo", "--part", "merge", "cats-upper")
    cheap = [c for c in REFRESH.commands(page) if not any(word in c for word in dear)]
    assert len(cheap) >= 7
    scratch = REFRESH.Scratch(tmp_path)
    for command in cheap:
        printed = scratch.run(command)
        if command.startswith("mnemoscope show"):
            assert printed in page, f"docs/tour.md shows something else for {command}; python docs/refresh.py mends it"


def test_there_are_twelve_recipes_and_each_has_something_to_type() -> None:
    recipes = re.split(r"^## ", text_of(ROOT / "docs/recipes.md"), flags=re.MULTILINE)[1:]
    assert len(recipes) == 12
    assert all("```" in recipe for recipe in recipes)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_recipe_runs_as_written(tmp_path: Path) -> None:
    """In one empty folder, in the page's order, and each says what it is for."""
    scratch = REFRESH.Scratch(tmp_path)
    printed = {}
    for language, block in re.findall(
        r"^```(\w*)\n(.*?)^```", text_of(ROOT / "docs/recipes.md"), re.DOTALL | re.MULTILINE
    ):
        if language == "python":
            printed[block] = scratch.run_python(block)
        else:
            printed |= {line: scratch.run(line) for line in block.splitlines()}

    def said(words: str) -> str:
        (found,) = (text for command, text in printed.items() if words in command)
        return found

    assert said("show atlas").startswith("L5.M367")
    assert "«returns»" in said("search atlas returns").lower()
    assert re.search(r"L\d+\.M\d+", said("attribute builtin"))
    assert "plugh" in said("audit builtin")
    right, usual = map(int, re.findall(r"([0-9]+)%", said("lstsq")))
    assert right > 1.5 * usual
    assert abs(float(re.search(r"L0\.M[0-9]+: ([-+][0-9.]+)", said("corrcoef"))[1])) > 0.1  # type: ignore[index]
    assert "coefficient" in said("triggers()")
    assert (tmp_path / "figure4.html").stat().st_size > 0
    assert (tmp_path / "atlas/report/index.html").is_file()
    assert (tmp_path / "whole/manifest.json").is_file()


def test_refreshing_pastes_what_is_printed(tmp_path: Path) -> None:
    page = "a\n\n```console\n$ echo new\nold\n$ false  # refused\n```\n\nb\n\n"
    page += "```python\nshown, and (not run\n```\n\n"
    page += "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    scratch = REFRESH.Scratch(tmp_path)
    with pytest.raises(IndexError):  # a refused command must say why
        REFRESH.refreshed(page, scratch)
    page = page.replace("false", "(echo no; echo why >&2; exit 2)")
    after = REFRESH.refreshed(page, scratch)
    assert "$ echo new\nnew\n$ (echo no; echo why >&2; exit 2)  # refused\nno\nwhy\n```" in after
    assert "print(1 + 1)\n```\n\n```text\n2\n```\n" in after
    assert REFRESH.refreshed(after, scratch) == after


def test_a_command_that_fails_fails_the_refreshing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        REFRESH.refreshed("```console\n$ exit 3\n```\n", REFRESH.Scratch(tmp_path))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_the_table_of_claims_keeps_the_columns_of_atlases_that_are_not_given() -> None:
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    made = _module("paper_table")
    before = page.partition(made.BEGIN)[2].partition(made.END)[0]
    assert made.table(None, None, page) == before.strip()


def test_every_picture_is_made_by_a_command_that_is_there() -> None:
    shown = {
        (page.parent / name).resolve().relative_to(ROOT).as_posix()
        for page in PAGES
        for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text_of(page))
    }
    assert shown == set(REFRESH.PICTURES)
    for picture, command in REFRESH.PICTURES.items():
        assert (ROOT / picture).is_file(), picture
        script = next(word for word in command.split() if "/" in word)
        assert (ROOT / script).is_file(), command


def test_readme_s_picture_shows_the_page_as_it_is() -> None:
    """Where this fails, the page has changed since: `python docs/refresh.py --pictures`, and look at the picture."""
    assert text_of(ROOT / "docs/figures/seen.txt").strip() == REFRESH.hash_seen()


def test_layers_of_the_model_that_ships_are_counted_right() -> None:
    layers = ms.load_model("builtin:pydocs", device="cpu").sizes.layers
    words = {"six": 6, "eight": 8, "twelve": 12}
    found = 0
    for page in (ROOT / "README.md", ROOT / "docs/tour.md", ROOT / "docs/serve.md", ROOT / "docs/README.md"):
        for line in text_of(page).splitlines():
            if re.search("demo|built-in|builtin:pydocs", line):
                for count in re.findall(r"\b(\d+|six|eight|twelve)[- ]layers?\b", line):
                    found += 1
                    assert words.get(count, count) in (layers, str(layers)), (page.name, line)
    assert found >= 2


def test_every_public_name_is_in_the_reference() -> None:
    reference = text_of(ROOT / "docs/api.md")
    listed = set(re.findall(r"auto(?:function|class|module):: (?:[\w.]+\.)?(\w+)$", reference, re.MULTILINE))
    used = {name for page in PAGES for name in re.findall(r"\bms\.(\w+)\(", text_of(page))}
    assert listed >= set(ms.__all__)
    assert listed >= used - {"train"}, used - listed


def anchors(page: Path) -> set[str]:
    """What GitHub and the site make of the headings."""
    plain = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower()).replace(" ", "-") for title in titles}


def test_every_link_between_pages_leads_somewhere() -> None:
    checked = 0
    for page in [*PAGES, *(ROOT / "docs/log").glob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        plain = re.sub(r"^```.*?^```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)\s]+)\)", plain):
            if re.match(r"\w+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = page if not name else (page.parent / name).resolve()
            assert target.exists(), (page.name, link)
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target), (page.name, link)
            checked += 1
    assert checked > 100


def test_the_site_has_a_first_page() -> None:
    assert '"index.html"' in text_of(ROOT / "docs/conf.py")


def test_the_table_of_both_signs_counts_as_the_answer_does(planted: Path) -> None:
    spec = importlib.util.spec_from_file_location("real_models", ROOT / "runs" / "real_models.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    atlas = ms.open_atlas(planted)
    features = made.features_with_targets(atlas).filter(sign=1)
    for layer in atlas.layers:
        ranks = atlas.table("values", layer=layer)["target_rank"].drop_nulls()
        assert features.filter(layer=layer)["agrees"].sum() == (ranks == 0).sum() > 0
        assert features.filter(layer=layer).height == len(ranks)
