"""The lowest versions that pyproject.toml states: as constraints for pip, and tried by the verbs on a tiny model.

`python runs/lowest.py >FILE` prints them, of torch the one of constraints.txt: below it nothing was tried.
`python runs/lowest.py --try` mines, shows, searches, attributes, opens an adapter and serves with what is installed.
`.ci/run` does both, in an environment of its own.
"""

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from contextlib import chdir
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
VERBS = [
    ["mine", "builtin:pydocs", "zen.txt", "--split", "line", "--layers", "5", "--removals", "0", "--out", "zen"],
    ["show", "zen", "L5.M1"],
    ["search", "zen", "better"],
    ["attribute", "builtin:pydocs", "Return a list of", "--atlas", "zen", "--top", "2"],
    ["inspect", "builtin:pydocs", "--adapter", "lora"],
]
PAGES = ["", "L5.M1", "layers/5", "search?q=better", "trace?prompt=Return+a+list+of", "annotate"]


def lowest() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for one in project["dependencies"]:
        stated = re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)(?:,<[0-9.]+)?", one)
        if stated is None:
            raise SystemExit(f"pyproject.toml states {one!r}; state its lowest version: NAME>=VERSION")
        found.append("==".join(stated.groups()))
    tried = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert tried is not None
    return [tried[0] if one.startswith("torch==") else one for one in found]


def try_verbs() -> None:
    """In the working folder; the verbs in one process, since the imports take longer than they."""
    import peft

    from mnemoscope import load_model
    from mnemoscope.cli import main

    zen = subprocess.run([sys.executable, "-c", "import this"], check=True, capture_output=True, text=True).stdout
    Path("zen.txt").write_text("\n".join(zen.splitlines()[:8]), encoding="utf-8")
    adapted = peft.get_peft_model(
        load_model("builtin:pydocs").anatomy.model, peft.LoraConfig(target_modules=["dense_4h_to_h"])
    )
    adapted.save_pretrained("lora")
    for verb in VERBS:
        print("==", *verb, flush=True)
        if code := main(verb):
            raise SystemExit(code)
    ask_pages(PAGES, "zen", "--model", "builtin:pydocs")


def ask_pages(pages: Iterable[str], *words: str) -> None:
    """Serves, with these words of the command line, and asks for each page once."""
    serving = [sys.executable, "-m", "mnemoscope", "serve", *words, "--port", "0", "--json"]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["url"]
            for page in pages:
                with urlopen(f"{url.rstrip('/')}/{page}", timeout=60) as answer:
                    print(f"== /{page}: {answer.status}, {len(answer.read()):,} bytes", flush=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    if sys.argv[1:] == ["--try"]:
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            try_verbs()
    else:
        print(*lowest(), sep="\n")
