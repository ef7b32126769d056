"""Everything that users see of three small atlases, as text: to compare two versions of the code, line by line.

    PYTHONPATH=src:tests python runs/kept_outputs.py FOLDER

makes FOLDER/outputs with the tables of every atlas, the output of every verb, every page's JSON and the report. Run
it with the sources before and after a change that should change nothing, and compare: `diff -r A/outputs B/outputs`.
A table is kept as its columns' names and types and its rows, a line each; what its file says beside them (the schema's
metadata, encodings) stands in a file beside it. What differs by nature (times, hosts, dates, the folder's own name) is
left out or replaced. The models are a GPT-2-shaped and a gated one with random weights, and the built-in one. Not a
test itself; it relies on nothing but the commands, addresses and files of the contract.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq

from mnemoscope.questions import QUESTIONS

TEXT = Path(__file__).parents[1] / "docs" / "neural-memory.md"
PAGES = (
    *("/", "/layers", "/layers/0", "/layers/1", "/L0.M0", "/L1.M5", "/questions", "/search?q=memory"),
    *("/tokens", "/tokens?q=the", "/trace?prompt=the+memory+of+a+layer", "/L0.M0/causal", "/L1.M5/try?text=the+memory"),
    *(f"/questions/{question}" for question in QUESTIONS),
)


def save_models(folder: Path) -> dict[str, str]:
    """The models' names; the random ones are saved in `folder` unless they lie there."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, set_seed

    from mining.conftest import byte_tokenizer

    shape = {"vocab_size": 270, "bos_token_id": 0, "eos_token_id": 0}
    gpt2 = GPT2Config(n_layer=4, n_embd=32, n_head=4, n_positions=64, **shape)
    llama = LlamaConfig(
        num_hidden_layers=4,
        hidden_size=32,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        **shape,
    )
    for name, kind, config in (("gpt2", GPT2LMHeadModel, gpt2), ("gated", LlamaForCausalLM, llama)):
        if not (folder / name / "config.json").is_file():
            set_seed(1)
            kind(config).save_pretrained(folder / name)
            byte_tokenizer(bos_token="<|endoftext|>", eos_token="<|endoftext|>").save_pretrained(folder / name)
    return {"gpt2": "models/gpt2", "gated": "models/gated", "builtin": "builtin:pydocs"}


def run(folder: Path, name: str, *words: str) -> None:
    """Keeps what a command prints, and how it ends."""
    made = subprocess.run(
        [sys.executable, "-m", "mnemoscope", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "HF_HUB_OFFLINE": "1"},
    )
    last = made.stderr.strip().splitlines()[-1:] if made.returncode else []
    keep(folder, f"{name}.txt", "\n".join([f"exit {made.returncode}", *last, made.stdout]))


def keep(folder: Path, name: str, text: str) -> None:
    """Writes one output, without what differs by nature."""
    path = folder / "outputs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = text.replace(str(folder), "FOLDER")
    path.write_text(re.sub(r'"(seconds|host|finished|machine)": ("[^"]*"|[0-9.]+|\{[^}]*\})', r'"\1": 0', text))


def keep_table(folder: Path, place: str) -> None:
    """Keeps a table's names, types and rows, and apart what its file says of them."""
    table = pq.read_table(folder / place)
    named = [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in table.schema]
    rows = (json.dumps(row, ensure_ascii=False, default=str) for row in table.to_pylist())
    keep(folder, f"{place}.rows", "\n".join([*named, *rows, ""]))
    file = pq.ParquetFile(folder / place).metadata
    columns = [file.row_group(0).column(index) for index in range(file.num_columns)] if file.num_row_groups else []
    encodings = [f"{one.path_in_schema} {one.compression} {' '.join(sorted(set(one.encodings)))}" for one in columns]
    stated = [f"{name.decode()}: {value.decode()}" for name, value in sorted((file.metadata or {}).items())]
    keep(folder, f"{place}.file", "\n".join([f"row groups: {file.num_row_groups}", *encodings, *stated, ""]))


def keep_pages(folder: Path, atlas: str, model: str) -> None:
    """Keeps every page of the served atlas as JSON."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["serve", atlas, "--model", model, "--port", str(port)]
    server = subprocess.Popen(
        [sys.executable, "-m", "mnemoscope", *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for page in PAGES:
            path, _, query = page.partition("?")
            data = "/index.json" if path == "/" else f"{path}.json"
            address = f"http://127.0.0.1:{port}{data}?{query}"
            name = re.sub(r"\W+", "-", page).strip("-") or "overview"
            keep(folder, f"{atlas}/pages/{name}.json", fetch(address))
    finally:
        server.terminate()
        server.wait()


def fetch(address: str) -> str:
    """The body of an answer, as indented JSON; waits for a server that is starting, an index, a worker that is busy."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(address, timeout=120) as answer:
                return json.dumps(json.load(answer), indent=1, sort_keys=True)
        except urllib.error.HTTPError as error:
            if error.code not in (503, 202):
                return f"{error.code} {error.read().decode()}"
        except OSError:
            pass
        time.sleep(0.5)
    return "no answer"


def main(folder: Path) -> None:
    """Makes the outputs of all atlases in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text(TEXT.read_text())
    for name, model in save_models(folder / "models").items():
        run(folder, f"{name}/inspect", "inspect", model, "--json")
        run(
            folder,
            f"{name}/mine",
            "mine",
            model,
            "text.txt",
            "--out",
            name,
            "--prefixes",
            "60",
            "--removals",
            "5",
            "--token-activations",
            "--random",
        )
        run(folder, f"{name}/again", "mine", model, "text.txt", "--out", name, "--token-activations", "--random")
        run(folder, f"{name}/analyze", "analyze", name)
        run(folder, f"{name}/analyze-json", "analyze", name, "--json")
        run(folder, f"{name}/value_agreement", "analyze", name, "value_agreement")
        run(folder, f"{name}/show", "show", name, "L1.M5")
        run(folder, f"{name}/show-json", "show", name, "L0.M0", "--json")
        run(folder, f"{name}/search", "search", name, "memory", "--json")
        run(folder, f"{name}/trace", "trace", model, "the memory of a layer", "--set", "L1.M5=0")
        run(folder, f"{name}/trace-json", "trace", model, "the memory of a layer", "--json")
        run(folder, f"{name}/report", "report", name, "--json")
        run(folder, f"{name}/verify", "verify", name)
        run(folder, f"{name}/no-such-memory", "show", name, "L9.M0")
        keep_pages(folder, name, model)
        for path in sorted((folder / name).rglob("*")):
            place = path.relative_to(folder).as_posix()
            if path.suffix == ".parquet":
                keep_table(folder, place)
            elif path.name == "index.html" or "/analyses/" in place:
                keep(folder, place, path.read_text())


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
