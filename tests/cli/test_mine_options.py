"""What `mine` and `merge` understand, and what they refuse before anything is loaded."""

import importlib
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mnemoscope.cli import main
from mnemoscope.foundation.options.fleet_options import ALONE, FleetOptions
from mnemoscope.foundation.options.mining_options import MiningOptions
from support.handbuilt_atlas import build_atlas

EVERY_OPTION = """
    --validation hub:v --split line --triggers 7 --per-sentence all --layers 0-3,7 --max-sentences 9 --max-tokens 99
    --prefixes 5 --removals all --own 7 --neighbours 4 --part 2/3 --batch-tokens 512 --dtype bfloat16 --device cuda:1
    --seed 3 --checkpoint-every 0.5 --keep-work --text-field body --revision main --trust-remote-code --force --json
    --name N --text-name T --adapter lora --tokenizer words --dequantize --dict dict.txt --max-memory 0=20GiB,cpu=60GiB
    --beginning none --side encoder --skip-bad-rows 6 --skip-special --token-activations --random --sample 0.25
"""

UNSET = """
    validation triggers layers max_sentences max_tokens removals own part sample batch_tokens source_field ids_field
    name text_name
"""
OFF = "keep_work force accept_versions skip_special token_activations random"

Capture = pytest.CaptureFixture[str]


class FakeMining(ModuleType):
    """A mining room that notes how it was called and makes the hand-built atlas."""

    def __init__(self) -> None:
        super().__init__("mnemoscope.mining")
        self.__path__ = importlib.import_module("mnemoscope.mining").__path__  # its options are read for real
        self.calls: list[tuple[Any, ...]] = []

    def run_mining(
        self, model: str, corpus: str, out: Path, options: MiningOptions, fleet: FleetOptions, *, progress: Any
    ) -> Path:
        assert fleet == ALONE
        progress("mining", 5, 10, "tokens")
        self.calls.append((model, corpus, {"out": out, **asdict(options)}))
        return build_atlas(out, part=options.share)

    def merge(
        self,
        out: Path,
        parts: list[Path],
        *,
        model: str | None,
        force: bool,
        accept_versions: bool,
        allow_mixed_devices: bool,
        progress: Any,
        adapter: str | None,
        dequantize: bool,
        revision: str | None,
        dict: Any,
    ) -> Path:
        opening = adapter, dequantize, revision, dict
        self.calls.append((out, parts, model, force, allow_mixed_devices, opening))
        return build_atlas(out)


@pytest.fixture
def mining(monkeypatch: pytest.MonkeyPatch) -> FakeMining:
    import mnemoscope

    fake = FakeMining()
    monkeypatch.setitem(sys.modules, "mnemoscope.mining", fake)
    monkeypatch.setattr(mnemoscope, "mining", fake, raising=False)
    return fake


def test_defaults_are_the_contract_s(mining: FakeMining, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "atlas"
    assert main(["mine", "gpt2", "hub:wiki", "--out", str(out)]) == 0
    model, corpus, options = mining.calls[0]
    assert (model, corpus) == ("gpt2", "hub:wiki")
    assert options == {
        **{
            "out": out,
            "split": "sentence",
            "per_sentence": "1",
            "prefixes": 4000,
            "neighbours": 10,
            "dtype": "float32",
        },
        **{"device": "auto", "seed": 0, "checkpoint_every": 60.0, "text_field": "text", "skip_bad_rows": 0},
        **dict.fromkeys(UNSET.split()),
        **dict.fromkeys(OFF.split(), False),
        "opening": {
            **dict.fromkeys(("beginning", "side", "adapter", "tokenizer", "revision", "dictionary", "max_memory")),
            **dict.fromkeys(("dequantize", "trust_remote_code"), False),
        },
    }
    printed, progress = capsys.readouterr()
    assert printed.splitlines()[0] == f"{out} is an atlas: layers 0-1 with memories 0-3 (8 memories)"
    assert printed.splitlines()[-2] == f"next: mnemoscope show {out} L1.M0"
    assert progress == "mining: 5 of 10 tokens (50 %)\n"


def test_every_option_arrives(mining: FakeMining, tmp_path: Path, capsys: Capture) -> None:
    assert main(["mine", "m", "hub:c", "--out", str(tmp_path / "a"), *EVERY_OPTION.split()]) == 0
    assert mining.calls[0][2] == {
        **{"out": tmp_path / "a", "validation": "hub:v", "split": "line", "triggers": 7, "per_sentence": "all"},
        **{"layers": "0-3,7", "max_sentences": 9, "max_tokens": 99, "prefixes": 5, "removals": "all", "own": "7"},
        **{"neighbours": 4, "part": "2/3", "batch_tokens": 512, "dtype": "bfloat16", "device": "cuda:1", "seed": 3},
        **{
            "checkpoint_every": 0.5,
            "keep_work": True,
            "text_field": "body",
            "sample": 0.25,
            "ids_field": None,
            "source_field": None,
        },
        **{"force": True, "accept_versions": False, "name": "N", "text_name": "T", "skip_bad_rows": 6},
        **dict.fromkeys(("skip_special", "token_activations", "random"), True),
        "opening": {
            **{"beginning": "none", "side": "encoder", "adapter": "lora"},
            **{"tokenizer": "words", "dequantize": True, "revision": "main"},
            **{"dictionary": Path("dict.txt"), "trust_remote_code": True, "max_memory": "0=20GiB,cpu=60GiB"},
        },
    }
    assert '"part": {' in capsys.readouterr().out


IMPOSSIBLE = """
    --triggers 0; --triggers -3; --triggers many; --layers 3-1; --layers x; --layers 1,; --part 0/3; --part 4/3
    --part 1; --split word; --per-sentence 2; --dtype int8; --max-tokens 0; --max-sentences 0; --batch-tokens 0
    --removals some; --prefixes -1; --neighbours -1; --checkpoint-every -1; --sample 0; --sample 1.5; --sample nan
    --seed -1; --skip-bad-rows -1; --text-field body --ids-field ids; --workers 0; --workers many; --launch pbs
    --print; --gpus-per-worker -1 --workers 2; --prepare --ray; --launch slurm --ray auto
"""


@pytest.mark.parametrize("words", re.split(r"; |\n *", IMPOSSIBLE.strip()))
def test_an_impossible_option_is_refused_at_once(
    mining: FakeMining, tmp_path: Path, words: str, capsys: Capture
) -> None:
    out = tmp_path / "atlas"
    assert main(["mine", "m", "hub:c", "--out", str(out), *words.split()]) == 2
    printed, said = capsys.readouterr()
    assert (printed, len(said.splitlines())) == ("", 1)
    assert words.split()[0] in said
    assert mining.calls == []
    assert not out.exists()


def test_merge_hands_over_every_part(mining: FakeMining, tmp_path: Path, capsys: Capture) -> None:
    parts = [build_atlas(tmp_path / f"p{number}", part=(number, 2)) for number in (1, 2)]
    assert main(["merge", str(tmp_path / "all"), *map(str, parts), "--model", "gpt2"]) == 0
    assert mining.calls == [(tmp_path / "all", parts, "gpt2", False, False, (None, False, None, None))]
    options = ["--adapter", "lora", "--dequantize", "--revision", "main", "--dict", "dict.txt", "--allow-mixed-devices"]
    assert main(["merge", str(tmp_path / "more"), str(parts[0]), *options]) == 0
    opening = ("lora", True, "main", Path("dict.txt"))
    assert mining.calls[1] == (tmp_path / "more", parts[:1], None, False, True, opening)
    assert main(["merge", str(tmp_path / "all")]) == 2
    assert "Missing argument 'PART" in capsys.readouterr().err
