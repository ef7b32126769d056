"""The small languages of the options: layers, parts, numbers of memories."""

import subprocess
import sys

import pytest

from mnemoscope.errors import OptionError
from mnemoscope.mining_options import choose_layers, parse_layers, parse_part, parse_removals


def test_layers_are_named_by_text_or_by_numbers() -> None:
    assert parse_layers("7, 0-2,1") == (0, 1, 2, 7)
    assert parse_layers([3, 1, 3]) == (1, 3)
    assert choose_layers(None, 3) == (0, 1, 2)
    assert choose_layers("2,0", 3) == (0, 2)


@pytest.mark.parametrize("layers", ["", "-1", "0-", "1.5", "3-1", "x", "1,", [-1], []])
def test_what_names_no_layers_is_refused(layers: str | list[int]) -> None:
    with pytest.raises(OptionError, match="write them as 0-3,7"):
        parse_layers(layers)


@pytest.mark.parametrize("layers", ["1-3", "99", [0, 3]])
def test_a_layer_that_the_model_lacks_is_refused(layers: str | list[int]) -> None:
    with pytest.raises(OptionError, match=r"(3|99) is not within the model's layers 0-2"):
        choose_layers(layers, 3)


def test_parts_are_named_by_text_or_by_two_numbers() -> None:
    assert parse_part(" 1/1 ") == (1, 1)
    assert parse_part((2, 3)) == (2, 3)
    for wrong in ("0/3", "4/3", "1", "1/", "-1/3", "1/3/5", (0, 1), (3, 2)):
        with pytest.raises(OptionError, match="is not a part; write 1/3, 2/3 or 3/3"):
            parse_part(wrong)


def test_removals_are_a_number_or_all() -> None:
    assert (parse_removals("12"), parse_removals(0), parse_removals("all")) == (12, 0, "all")
    for wrong in ("some", "-1", -1, "1.5"):
        with pytest.raises(OptionError, match="is not a number of memories per layer, nor all"):
            parse_removals(wrong)


def test_options_are_read_without_torch() -> None:
    script = (
        "import sys\nimport mnemoscope.mining_options\n"
        "heavy = {'torch', 'transformers', 'polars', 'numpy'} & set(sys.modules)\nassert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
