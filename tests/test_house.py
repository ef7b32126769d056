"""The rules of the house that no linter knows."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "mnemoscope"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
FORBIDDEN_NAMES = {"utils", "helpers", "common", "base", "core", "manager"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_source_file_is_short_and_says_what_it_does(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 500
    assert ast.get_docstring(ast.parse(text)), "a file opens with a docstring"
    assert path.stem not in FORBIDDEN_NAMES
    assert "hasattr(" not in text
    assert "# fmt:" not in text


def test_a_number_is_of_ascii_digits() -> None:
    r"""`\d` and `isdigit` take digits of any script, the latter superscripts, too, which `int` refuses: write [0-9]."""
    for path in SOURCES:
        used = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        texts = [str(one.value) for one in used if isinstance(one, ast.Constant)]
        assert not [text for text in texts if r"\d" in text.replace(r"\\", "")], path
        tests = {one.attr for one in used if isinstance(one, ast.Attribute)}
        elsewhere = path.name == "surface.py"  # which words are numbers
        assert elsewhere or "isascii" in tests or not tests & {"isdigit", "isdecimal", "isnumeric"}, path


def test_no_folder_is_a_flat_room() -> None:
    folders = {path.parent for path in SOURCES}
    crowded = {name_of(folder): len([*folder.glob("[!_]*.py")]) for folder in folders}
    assert max(crowded.values()) <= 15, crowded
    assert all((folder / "__init__.py").is_file() for folder in folders)


def tracked_text() -> list[Path]:
    """Every text file of the repository, as git sees it; without git, those in the known places."""
    asked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if asked.returncode == 0:
        paths = [ROOT / line for line in asked.stdout.splitlines()]
    else:
        paths = [*ROOT.glob("*.*"), *(p for name in ("src", "tests", "docs") for p in (ROOT / name).rglob("*"))]
    endings = {".py", ".md", ".toml", ".txt", ".json", ".sh", ".yml", ""}
    return [path for path in paths if path.is_file() and path.suffix in endings and path.stat().st_size < 1_000_000]


def test_nothing_names_a_machine() -> None:
    # Written in two pieces so that this file does not find itself.
    places = ["/wo" + "rk/", "/opt/" + "mn", "/opt/" + "pypi", "/home/" + r"\w+/", "/ro" + "ot/"]
    # A path of a machine begins there; `atlas/work/text` is a folder of ours.
    machine = re.compile(rf"(?<![\w.}}\])])(?:{'|'.join(places)})")
    found = [
        f"{name_of(path)}: {match.group()}"
        for path in tracked_text()
        if "pydocs" not in path.parts
        for match in machine.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_importing_the_package_needs_nothing() -> None:
    """So that it comes at once; seconds are not asserted, since they depend on what else the machine does."""
    script = (
        "import sys\nimport mnemoscope\n"
        "heavy = {'torch', 'transformers', 'numpy', 'polars', 'pyarrow', 'typer', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_atlas_is_read_without_torch() -> None:
    script = (
        "import sys\nimport mnemoscope as ms\nms.open_atlas, ms.verify, ms.MemoryId, ms.errors\n"
        "heavy = {'torch', 'transformers'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_is_there() -> None:
    import mnemoscope

    assert set(mnemoscope.__all__) <= set(dir(mnemoscope))
    for name in mnemoscope.__all__:
        assert getattr(mnemoscope, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mnemoscope.nothing  # noqa: B018


IRREGULAR = {"drawn", "given", "held", "kept", "known", "made", "said", "seen", "shown", "taken", "told", "written"}


def test_no_function_is_named_by_a_bare_participle() -> None:
    """A function is a verb phrase or names what it returns."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = node.name.strip("_")
                bare = "_" not in name and (name in IRREGULAR or name.endswith("ed"))
                assert not bare, f"{path.name}:{node.lineno} {node.name}"


def requirements() -> list[Requirement]:
    """What the package, its extras and its build ask for."""
    project = PROJECT["project"]
    extras = [text for extra in project["optional-dependencies"].values() for text in extra]
    texts = [*project["dependencies"], *extras, *PROJECT["build-system"]["requires"]]
    return [Requirement(text) for text in texts]


def test_constraints_pin_everything_that_is_needed() -> None:
    """Also what is needed by what is needed, at the version that is installed here."""
    waiting, seen = requirements(), set[str]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker and not any(_applies(requirement))):
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # what builds the package need not be installed to run it
        assert name in PINS, f"{name} is not in constraints.txt"
        assert Version(found.version).public == PINS[name], f"{name}: installed {found.version}, pinned {PINS[name]}"
        waiting += [Requirement(text) for text in found.requires or []]
    assert len(seen) > 40
    assert "pip" not in PINS


def _applies(requirement: Requirement) -> list[bool]:
    return [requirement.marker.evaluate({"extra": ""})]


def test_pins_meet_what_is_asked_for() -> None:
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(PINS[name]), f"{requirement} against {PINS[name]}"
    assert all(re.fullmatch(r"[\w.]+", version) for version in PINS.values())


@pytest.mark.full
def test_what_is_imported_is_asked_for() -> None:
    """At the top of a file only what every installation has; inside a function also what an extra brings, and at
    the top of a file that is written in an extra's language.
    """
    declared = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    extra = {requirement.name for requirement in requirements()}
    at_the_top, inside = set[str](), set[str]()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            if names:
                anywhere = not node.col_offset and path.name != "cards.py"
                (at_the_top if anywhere else inside).update(name.split(".")[0] for name in names)
    # A distribution may have another name than its module: vl-convert-python gives vl_convert.
    given = packages_distributions()
    for imported, allowed in ((at_the_top, declared), (inside, declared | extra)):
        outside = imported - set(sys.stdlib_module_names) - {"mnemoscope"}
        outside = {distribution for name in outside for distribution in given.get(name, [name])}
        assert {canonicalize_name(name) for name in outside} - allowed == set()


def test_every_file_of_the_package_is_shipped() -> None:
    shipped = PROJECT["tool"]["setuptools"]["package-data"]["mnemoscope"]
    for path in PACKAGE.rglob("*"):
        kept = path.parent.name == "__pycache__"  # what Python has compiled, beside what was installed
        if path.is_file() and not kept and path.suffix not in (".py", ".so"):  # .so: what the installation compiled
            name = path.relative_to(PACKAGE).as_posix()
            assert any(fnmatch(name, pattern) for pattern in shipped), f"{name} is in no package-data pattern"


def test_the_readme_holds_the_two_commands_that_ci_reads() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("demo command", "test command"):
        found = re.findall(rf"<!-- {name} -->\n```\w*\n(.+)\n```\n<!-- end of {name} -->", page)
        assert len(found) == 1, name
        assert found[0].startswith("python3 -m venv .venv && ")


def test_the_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_public_names_of_campaigns_are_there() -> None:
    from mnemoscope import annotations

    for name in annotations.__all__:
        assert getattr(annotations, name).__module__.startswith("mnemoscope.annotate.campaigns."), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        annotations.nothing  # noqa: B018


def test_no_class_name_has_two_meanings() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(name_of(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


SHARED_NAMES = {"_repr_html_", "_ipython_key_completions_"}
"""Private names of the package that a protocol of somebody else's fixes."""
PATCHING = {"setattr", "delattr", "getattr", "object"}
"""Functions that take an attribute's name as a string (`object`: unittest's `patch.object`)."""


def private_names() -> set[str]:
    """The functions, classes, attributes and constants of the package whose names begin with one underscore."""
    found = set[str]()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return {name for name in found if re.match("_[^_]", name)} - SHARED_NAMES


def private_uses(tree: ast.AST, private: set[str]) -> list[tuple[int, str]]:
    """The lines where a script imports, patches or reads one of these names of another object, and the names.

    Strings that hold a script, or the path of something of the package, are read as the script.
    """
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        used: list[str] = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mnemoscope"):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            used = [] if own else [node.attr]
        elif isinstance(node, ast.Call):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            used = [each.value for each in node.args if isinstance(each, ast.Constant)] * (function in PATCHING)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "mnemoscope" in node.value:
            with suppress(SyntaxError):
                inside = private_uses(ast.parse(node.value), private)
                found += [(node.lineno + line - 1, name) for line, name in inside]
        found += [(node.lineno, name) for name in used if name in private]  # type: ignore[attr-defined]
    return sorted(found)


def test_tests_use_no_private_name_of_the_package() -> None:
    every_kind = """
from mnemoscope.foundation.heap import _made_up
heap._made_up
monkeypatch.setattr(heap, "_made_up", None)
patch("mnemoscope.foundation.heap._made_up")
script = "import mnemoscope; mnemoscope._made_up"
self._made_up + cls._made_up + heap._another
rows["_made_up"]
"""
    assert private_uses(ast.parse(every_kind), {"_made_up"}) == [(line, "_made_up") for line in range(2, 7)]
    private = private_names()
    assert len(private) > 1_000
    found = [
        f"{name_of(path)}:{line} {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in private_uses(ast.parse(path.read_text(encoding="utf-8")), private)
    ]
    assert found == []


PRIVATE_DOORS = {
    "accelerate": {"_hf_hook", "_old_forward"},
    "bitsandbytes": {"_convert_weight_packed_for_cpu_inverse"},
    "nnsight": {"_module"},
    "torch": {
        *("_buffers", "_forward_hooks", "_forward_pre_hooks", "_global_forward_hooks", "_global_forward_pre_hooks"),
        *("_modules", "_non_persistent_buffers_set", "_parameters", "_version"),
    },
    "transformers": {
        *("_apply_gate", "_attn_implementation", "_attn_implementation_internal"),
        *("_checkpoint_conversion_mapping", "_no_split_modules"),
    },
}
"""Private names of other libraries; docs/decisions.md, "The house", says which are doors that change something."""


def test_private_names_of_other_libraries_are_listed() -> None:
    """A release of theirs may take each of them away. A named tuple's `_asdict` is public."""
    found = set[str]()
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and not (
                isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            ):
                used = [node.attr]
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("mnemoscope"):
                used = [alias.name for alias in node.names]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in PATCHING:
                constants = [each.value for each in node.args if isinstance(each, ast.Constant)]
                used = [each for each in constants if isinstance(each, str)]
            else:
                continue
            found |= {name for name in used if re.match("_[^_]", name)} - own
    assert found - {"_asdict"} == set().union(*PRIVATE_DOORS.values())
