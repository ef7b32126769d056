"""Checkpoints that are not read are named by what lies in the folder, with the next step."""

from pathlib import Path

import pytest
import torch

from mining.conftest import byte_tokenizer
from mnemoscope.cli import main
from mnemoscope.errors import MnemoscopeError, ModelDamaged, ModelUnsupported
from mnemoscope.models import load_model
from models.conftest import build

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n"
STRANGERS = {
    "params.json consolidated.00.pth": "Meta or Mistral release them: convert them with convert_llama_weights_to_hf.py",
    "zero_to_fp32.py latest": "DeepSpeed: run python zero_to_fp32.py . OUT there",
    "global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt": "DeepSpeed: convert it with DeepSpeed's zero_to_fp32.py",
    "latest_checkpointed_iteration.txt": "Megatron: export it with Megatron Bridge",
    "mp_rank_00/model_optim_rng.pt": "Megatron: export it with Megatron Bridge",
    "__0_0.distcp .metadata": "distributed checkpoint of PyTorch: python -m torch.distributed.checkpoint.format_utils",
    "lit_model.pth": "LitGPT: convert it with litgpt convert_from_litgpt",
    "flax_model.msgpack": "weights of Flax: transformers 4 reads them (from_flax=True)",
    "tf_model.h5": "weights of TensorFlow: transformers 4 reads them (from_tf=True)",
    "onnx/model.onnx": "an ONNX graph, which has no modules: give the model that it was exported from",
    "rank0.engine": "an engine of TensorRT",
    "model.nemo": "a model of NeMo",
    "model.ggml": "a file of llama.cpp before GGUF",
    "model-Q4.gguf": "a file of llama.cpp: name that, ",
}


@pytest.mark.parametrize("config", [False, True], ids=["alone", "beside a config.json"])
@pytest.mark.parametrize("files", list(STRANGERS))
def test_a_stranger_is_named_with_the_next_step(
    files: str, config: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"?")
    if config:
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert main(["inspect", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert STRANGERS[files] in said
    assert ("holds no weights" if config else "holds no config.json") in said


def test_a_part_of_a_gguf_and_a_pointer_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = tmp_path / "big-00001-of-00003.gguf"
    part.write_bytes(b"GGUF")
    assert main(["inspect", str(part)]) == 2
    assert "is one of 3 parts, which are not read; join them" in capsys.readouterr().err
    folder = tmp_path / "cloned"
    build("llama").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    assert load_model(str(folder)).family == "llama"
    for name in ("tokenizer.json", "model.safetensors", "config.json"):
        (folder / name).write_text(POINTER)
        with pytest.raises(ModelDamaged, match=f"'{name}' in folder .* is a pointer of Git LFS, .* git lfs pull there"):
            load_model(str(folder))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('"quantization": {"group_size": 64, "bits": 4}', "cannot read, MLX"),
        ('"quantization_config": {"quant_method": "exl2", "bits": 4.0}', "cannot read, exl2"),
        (
            '"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}',
            r"cannot read, modelopt \(NVFP4\)",
        ),
    ],
)
def test_a_packed_format_is_named(entry: str, said: str, tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().rstrip().removesuffix("}").rstrip() + f",\n{entry}}}")
    with pytest.raises(ModelUnsupported, match=f"{said}.*use the original model, before it was quantised"):
        load_model(str(tmp_path))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_program_is_named(tmp_path: Path) -> None:
    hf = build("llama")
    hf.config.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "model.pt"))
    with pytest.raises(MnemoscopeError, match=r"a compiled program \(TorchScript\); save its state_dict"):
        load_model(str(tmp_path))
