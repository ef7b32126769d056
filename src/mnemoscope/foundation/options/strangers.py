"""Checkpoints that are not read, told from the names in their folder, and what to do with each."""

import re
from pathlib import Path

_STRANGERS = (
    (
        "params.json consolidated*",
        "weights as Meta or Mistral release them",
        "convert them with convert_llama_weights_to_hf.py (or convert_mistral_...) of transformers' repository",
    ),
    ("zero_to_fp32.py", "a checkpoint of DeepSpeed", "run python zero_to_fp32.py . OUT there, and give OUT"),
    ("global_step*/*optim_states.pt", "a checkpoint of DeepSpeed", "convert it with DeepSpeed's zero_to_fp32.py"),
    ("latest_checkpointed_iteration.txt", "a checkpoint of Megatron", "export it with Megatron Bridge"),
    ("mp_rank_*/model_optim_rng.pt", "a checkpoint of Megatron", "export it with Megatron Bridge"),
    ("model_optim_rng.pt", "a checkpoint of Megatron", "export it with Megatron Bridge"),
    (
        "*.distcp",
        "a distributed checkpoint of PyTorch",
        "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt makes one file of it",
    ),
    ("lit_model.pth", "a checkpoint of LitGPT", "convert it with litgpt convert_from_litgpt"),
    ("flax_model*.msgpack", "weights of Flax", "transformers 4 reads them (from_flax=True) and saves them anew"),
    ("tf_model*.h5", "weights of TensorFlow", "transformers 4 reads them (from_tf=True) and saves them anew"),
    ("*.onnx", "an ONNX graph, which has no modules", "give the model that it was exported from"),
    ("onnx/*.onnx", "an ONNX graph, which has no modules", "give the model that it was exported from"),
    ("*.engine", "an engine of TensorRT, built for one card", "give the model that it was built from"),
    ("*.nemo", "a model of NeMo", "export it to transformers with NeMo's converter"),
    ("*.ggml", "a file of llama.cpp before GGUF", "convert it, or take the .gguf of the same model"),
)
"""Names in a folder (all of an entry must be there), what they are a sign of, and the next step."""
_PART = re.compile(r"-[0-9]{5}-of-([0-9]{5})\.gguf$")
_POINTER = b"version https://git-lfs"
_STORED = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.json", "*.model")


def stranger_in(folder: Path) -> str:
    """What a folder holds that is not read, and what to do; empty if nothing in it is known."""
    if files := sorted(folder.glob("*.gguf")):
        return f"it holds a file of llama.cpp: name that, {files[0]}"
    for patterns, what, todo in _STRANGERS:
        if all(any(folder.glob(pattern)) for pattern in patterns.split()):
            return f"it holds {what}: {todo}"
    return ""


def pointer_in(folder: Path) -> str | None:
    """The name of a file that Git LFS has not fetched: in its place lies a note of a few lines."""
    for path in sorted(path for pattern in _STORED for path in folder.glob(pattern)):
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(_POINTER)) == _POINTER:
                    return path.name
    return None


def parts_of(gguf: str) -> int:
    """In how many files a `.gguf` is, by its name."""
    named = _PART.search(gguf)
    return int(named[1]) if named else 1
