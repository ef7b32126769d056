"""The trace page of a model whose head has a transform: what its function changes is a part of what pushed."""

from pathlib import Path

from mining.conftest import ENDS, byte_tokenizer
from mnemoscope.models import load_model
from models.transformed_heads import build_transformed
from support.mined import mined_text
from web.parts import Parts
from web.served import client


def test_the_function_in_the_head_is_a_part_of_what_pushed(tmp_path: Path) -> None:
    build_transformed("bert").save_pretrained(tmp_path / "bert")
    byte_tokenizer(**ENDS).save_pretrained(tmp_path / "bert")
    out = mined_text(load_model(str(tmp_path / "bert")), tmp_path, "the cat sat\non the mat\n", removals=0, prefixes=0)
    reader, asked = client(out.path, model=str(tmp_path / "bert")), {"prompt": "the cat"}
    direct = reader.get("/trace.json", params=asked).json()["pushed"]["direct"]
    text = " ".join(Parts(reader.get("/trace", params=asked).text).text.split())
    assert abs(direct["head"]) > 0.01
    assert f"the function in the head {direct['head']:+.2f}".replace("-", "\N{MINUS SIGN}") in text
