"""What can be known without a model and tables is known before torch, polars or a library that draws or serves pages is
imported: missing texts, folders that are taken, wrong options and names of memories. Imports are counted, not seconds.
"""

import json
import subprocess
import sys
from pathlib import Path

from support.handbuilt_atlas import build_atlas

RUN = """
import contextlib, io, json, sys
from mnemoscope.cli import main
told = []
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(words)
    told.append([code, said.getvalue(), sorted(set(json.loads(sys.argv[2])) & set(sys.modules))])
print(json.dumps(told))
"""

HEAVY = ("torch", "transformers", "peft", "gguf", "polars", "altair", "vl_convert", "starlette", "uvicorn")
REFUSED = {
    "mine builtin:pydocs none.txt --out new": "no such text: 'none.txt'",
    "mine builtin:pydocs text.txt --out new --validation none.txt": "no such text: 'none.txt'",
    "mine builtin:pydocs text.txt --out new --ids-field ids": "is plain text, which has no fields",
    "mine builtin:pydocs none.txt --out new --workers 2": "no such text: 'none.txt'",
    "mine builtin:pydocs text.txt --out full": "full holds something that is not an atlas",
    "mine builtin:pydocs text.txt --out text.txt": "text.txt holds something that is not an atlas",
    "mine builtin:pydocs text.txt --out atlas": "atlas is finished already; choose another folder, or --force",
    "mine builtin:pydocs text.txt --out new --device gpu": "--device 'gpu' is not known",
    "mine builtin:pydocs text.txt --out new --dtype int8": "--dtype 'int8' is not known",
    "mine builtin:pydocs text.txt --out new --split word": "--split 'word' is not known",
    "mine builtin:none text.txt --out new": "no built-in model 'none'; there is builtin:pydocs",
    "mine ./none text.txt --out new": "no folder './none'",
    "mine none.gguf text.txt --out new": "no folder 'none.gguf'",
    "mine text.txt text.txt --out new": "'text.txt' is a file",
    "mine atlas text.txt --out new": "folder 'atlas' holds no config.json",
    "mine builtin:pydocs text.txt --out new --adapter ./none": "no folder './none'; give the folder of a saved adapter",
    "mine builtin:pydocs text.txt --out new --tokenizer ./none": "no folder './none'; give the folder of a saved",
    "merge new none other": "none does not exist (no manifest.json)",
    "merge full atlas atlas": "full holds something that is not an atlas",
    "demo --max-tokens 0": "--max-tokens 0 is impossible",
    "demo --out full": "full holds something that is not an atlas",
    "train --corpus none.txt --out new": "no such text: 'none.txt'",
    "train --corpus text.txt --validation none.txt --out new": "no such text: 'none.txt'",
    "train --validation v.txt": "--validation and --max-bytes belong to a text of your own",
    "train --max-bytes 5": "--validation and --max-bytes belong to a text of your own",
    "train --corpus text.txt --max-bytes 0": "--max-bytes 0 is impossible",
    "train --corpus text.txt --split word": "--split 'word' is not known",
    "train --checkpoint-every -1": "--checkpoint-every -1 is impossible",
    "train --corpus text.txt --out full": "full holds something that is not a training run",
    "train --corpus text.txt --out text.txt": "text.txt is a file",
    "train --corpus text.txt --plant none.txt --out new": "none.txt cannot be read",
    "train --corpus text.txt --hidden 7 --out new": "hidden size 7 does not divide into 4 heads",
    "inspect builtin:pydocs --corpus none.txt": "no such text: 'none.txt'",
    "inspect builtin:pydocs --split word": "--split 'word' is not known",
    "inspect builtin:pydocs --dtype int8": "--dtype 'int8' is not known",
    "inspect builtin:pydocs --max-tokens 0": "--max-tokens 0 is impossible",
    "inspect atlas --corpus text.txt": "atlas is an atlas; --corpus estimates",
    "trace builtin:pydocs hello --set L0.M0": "'L0.M0' is not a change of a memory",
    "trace handmade:planted cat --top 0": "--top 0 is impossible",
    "trace handmade:planted cat --generate -1": "--generate -1 is impossible",
    "trace ./none hello": "no folder './none'",
    "attribute builtin:pydocs --prompts none": "the prompts in none cannot be read",
    "attribute builtin:pydocs hello --atlas none": "none does not exist",
    "diff builtin:pydocs hello": "give one of --other, --other-adapter and --other-prompt",
    "diff builtin:pydocs hello --other ./none": "no folder './none'",
    "diff builtin:pydocs hello --other-adapter ./none": "no folder './none'; give the folder of a saved adapter",
    "audit builtin:pydocs --secrets none": "none cannot be read",
    "audit builtin:pydocs --secrets text.txt --vary letters": "--vary 'letters' is not known",
    "extend none": "none does not exist",
    "extend atlas rules": "'rules' is not a table that can be added",
    "lens none": "none does not exist",
    "lens atlas --kind glass": "'glass' is not a kind of lens",
    "worker none": "none holds no run for workers",
    "worker atlas --device gpu": "--device 'gpu' is not known",
    "status none": "none holds no run and no atlas",
    "serve none": "none does not exist",
    "serve atlas --model ./none": "no folder './none'",
    "serve atlas --host an.address.invalid": "host 'an.address.invalid' is not an address of this machine",
    "serve atlas --annotations nowhere://ada:secret@x": "--annotations names an address; judgements are kept in a file",
    "serve atlas --root-path a/b": "--root-path 'a/b' is not a path",
    "analyze none": "none does not exist",
    "analyze atlas figure99": "'figure99' is not a question",
    "report none": "none does not exist",
    "report atlas --out text.txt": "text.txt is not a folder; choose another",
    "report atlas --browse --out text.txt": "text.txt is not a folder; choose another",
    "show atlas": "Missing argument",
    "show atlas L0.M0 --limit 0": "--limit 0 is impossible",
    "show none L0.M0": "none does not exist",
    "show atlas 0.0": "'0.0' does not name a memory",
    "show atlas L99.M0": "L99.M0 is not in atlas",
    "search none cat": "none does not exist",
    "search atlas cat --layers x": "--layers 'x' does not name layers",
    "search atlas cat --layers 99": "layer 99 is not in atlas, which has layers",
    "search atlas cat --in ,": "field '' cannot be searched; choose from patterns, annotations, words, triggers,",
    "search atlas cat --in x": "field 'x' cannot be searched; choose from patterns, annotations, words, triggers,",
    "compare atlas none": "none does not exist",
    "verify none": "none does not exist",
}


def test_nothing_heavy_is_imported_before_the_cheap_checks(tmp_path: Path) -> None:
    build_atlas(tmp_path / "atlas")
    (tmp_path / "text.txt").write_text("One sentence.\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    asked = json.dumps([command.split() for command in REFUSED])
    command = [sys.executable, "-c", RUN, asked, json.dumps(HEAVY)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120)
    for (command, line), (code, said, heavy) in zip(REFUSED.items(), json.loads(run.stdout), strict=True):
        assert (code, heavy) == (2, []), (command, said, heavy)
        assert line in said.splitlines()[-1], (command, said)
        assert len(said.splitlines()) == 1, (command, said)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before
