"""A release: what runs/address.py writes, so that a package index shows README's links and pictures."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("README.md", "pyproject.toml", "CITATION.cff")
ADDRESS = "https://example.org/someone/mnemoscope"


def write(folder: Path, address: str) -> "subprocess.CompletedProcess[str]":
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, str(ROOT / "runs" / "address.py"), address]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_links_and_pictures_are_absolute(tmp_path: Path) -> None:
    assert write(tmp_path, ADDRESS).returncode == 0
    page, project, cited = ((tmp_path / name).read_text() for name in FILES)
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert links
    assert all(link.startswith(("https://", "http://", "#")) for link in links)
    assert f"]({ADDRESS}/raw/v0.1.0/docs/figures/memory-page.png)" in page
    assert f"git clone {ADDRESS}.git" in page
    assert tomllib.loads(project)["project"]["urls"]["Repository"] == ADDRESS
    assert f'repository-code: "{ADDRESS}"\n' in cited


def test_what_is_no_address_changes_nothing(tmp_path: Path) -> None:
    done = write(tmp_path, "somewhere")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert all((tmp_path / name).read_text() == (ROOT / name).read_text() for name in FILES)


def test_version_and_date_are_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = (ROOT / "CITATION.cff").read_text()
    dated = re.search(rf"^## \[{re.escape(version)}\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"version: {version}\ndate-released: {dated[1]}\n" in cited
    assert f"version = {{{version}}}" in (ROOT / "README.md").read_text()
