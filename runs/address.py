"""Writes the repository's public ADDRESS into README.md, pyproject.toml and CITATION.cff, given as the one argument.

README's links and pictures become absolute, at the tag of the version, since a package index shows it alone.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path.cwd()


def main(address: str) -> None:
    address = address.rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https://[^\s/]+(/[\w.-]+)+", address):
        sys.exit(f"{address!r} is not an address such as https://HOST/OWNER/mnemoscope")
    project, cited, readme = (ROOT / name for name in ("pyproject.toml", "CITATION.cff", "README.md"))
    tag = f"v{tomllib.loads(project.read_text())['project']['version']}"

    def whole(link: re.Match[str]) -> str:
        return f"{link[1]}{address}/{'raw' if link[1].startswith('!') else 'blob'}/{tag}/{link[2]})"

    text = readme.read_text().replace("git clone ADDRESS", f"git clone {address}.git")
    readme.write_text(re.sub(r"(!?\[[^\]]*\]\()(?!https?:|#)([^)]+)\)", whole, text))
    urls = {
        "Repository": address,
        "Documentation": f"{address}/tree/{tag}/docs",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
    }
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    stated = project.read_text()
    if "[project.urls]" not in stated:
        project.write_text(stated.replace("[project.scripts]", f"[project.urls]\n{lines}\n[project.scripts]"))
    if "repository-code" not in cited.read_text():
        cited.write_text(cited.read_text().replace("license:", f'repository-code: "{address}"\nlicense:', 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
