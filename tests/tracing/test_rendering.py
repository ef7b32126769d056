"""What a trace and a comparison look like: text and HTML of records made by hand, laid out as they are printed."""

import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import pytest
from rich.cells import cell_len

from mnemoscope.errors import PromptError
from mnemoscope.foundation.formatting import Table, fit
from mnemoscope.foundation.memory_changes import Intervention
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.options.chat_prompt import choose_position
from mnemoscope.models import load_model
from mnemoscope.tracing import (
    Comparison,
    Difference,
    Generated,
    Shift,
    Step,
    Trace,
    continuation_lines,
    for_terminal,
    trace,
)
from mnemoscope.tracing.comparison import compare
from mnemoscope.tracing.logit_sums import AttendedToken, LayerPart, LogitSum
from mnemoscope.tracing.records import Decision, Dominant, LayerState, Position, Prediction, Token

THE, CAT, SAT, MAT = (Token(id, text) for id, text in enumerate(["the", " cat", " sat", " <mat>"], 1))
LONG = Token(9, " of eighteen signs")


def best(*tokens: Token, first: float = 0.5) -> tuple[Prediction, ...]:
    """Each half as probable as the one before it."""
    return tuple(Prediction(token, first / 2**rank) for rank, token in enumerate(tokens))


def state(layer: int, position: int, output: tuple[Prediction, ...], *memories: Dominant, event: str) -> LayerState:
    residual, ffn = best(SAT, CAT), best(CAT, first=0.25)
    return LayerState(layer, position, residual, ffn, output, event, CAT, 7, 1.5, 0.75, 2, memories)


def dominant(layer: int, memory: int, share: float, vote: Token, *, sign: int = 1) -> Dominant:
    return Dominant(MemoryId(layer, memory), 2.0 * sign, sign, 4.0, share, vote, False)


STRONG = [dominant(0, 12, 1.0, MAT), dominant(0, 3, 0.0625, LONG, sign=-1), dominant(0, 5, 0.03125, THE)]
POSITIONS = (
    Position(0, THE, best(CAT, SAT), Decision(None, None), Decision(0, None)),
    Position(1, CAT, best(SAT, LONG, THE, MAT, CAT, first=0.75), Decision(1, 1), Decision(0, 0)),
)
PLACES = (
    (state(0, 0, best(SAT), event="composition"), state(0, 1, best(MAT, SAT), *STRONG, event="residual")),
    (state(1, 0, best(CAT, first=1.0), event="ffn"), state(1, 1, best(SAT, first=0.75), event="agreement")),
)
ATTENDED = ((Token(0, "<s>"), None, 0.5), (CAT, 1, 0.25), (THE, 0, 0.125), (LONG, 2, 0.0625), (MAT, 3, 0.03125))
PARTS = (
    LayerPart(0, None, 2.0, None, 3.5, None, ()),
    LayerPart(1, 1.0, -2.0, 1.25, -2.25, 1.875, tuple(AttendedToken(*one) for one in ATTENDED)),
)
SUMS = (
    LogitSum(0, 1.0, 0, 0, 0, 1.0, 0, 0, 0.0049, ()),
    LogitSum(1, *(9.0, 1.5, -0.5, 0.25, 7.125, 1.25, -0.375, 0.25), PARTS),
)
TRACE = Trace("tiny", "f" * 64, "the cat", Token(0, "<s>"), POSITIONS, PLACES, SUMS)

TEXT = """\
tiny: 2 tokens, 2 layers

position  token  predicted next  then                                      decided in
       0  the    ·cat 0.500      ·sat 0.250                                never
       1  ·cat   ·sat 0.750      ·of·eigh… 0.375  the 0.188  ·<mat> 0.094  layer 0

Layer by layer after position 1, ·cat: what is on top, and who contributes most
layer  residual    feed-forward  output        event      active  share memory → vote
    0  ·sat 0.500  ·cat 0.250    ·<mat> 0.500  residual        7  100.0% +L0.M12 → ·<mat>
                                                                   6.2% -L0.M3 → ·of·eighteen·signs
    1  ·sat 0.500  ·cat 0.250    ·sat 0.750    agreement       7  (none)

Who wrote ·sat, 7.12 above the mean logit: embedding +1.25, biases -0.38, other blocks +0.25
layer  attention  memories  positions  attends to (mean over heads)
    0                +3.50
    1      +1.25     -2.25        1.9  <s> 50%  ·cat@1 25%  the@0 12%  ·of·eightee…@2 6%"""


@pytest.fixture
def terminal() -> Iterator[None]:
    """One of 118 columns."""
    with for_terminal(118):
        yield


@pytest.mark.usefixtures("terminal")
def test_a_trace_in_a_terminal() -> None:
    assert (TRACE.text(memories=2), TRACE.text(position=-1, memories=2)) == (TEXT, TEXT)
    assert "   3.1% +L0.M5 → the" in str(TRACE)
    assert "M12" not in TRACE.text(position=0)
    changes = (Intervention(MemoryId(0, 3)), Intervention(MemoryId(1, 2), "scale", 2.0))
    changed = replace(TRACE, logits=(), interventions=changes)
    assert changed.text(memories=2).splitlines()[:2] == ["tiny: 2 tokens, 2 layers", "with L0.M3=0, L1.M2*2"]
    assert changed.text(memories=2).splitlines()[2:] == TEXT.splitlines()[1:-5]


def test_what_other_blocks_write_is_said_where_it_can_be_seen() -> None:
    """From half of the last digit on."""
    assert "other blocks" not in TRACE.text(position=0)
    written = replace(TRACE, logits=(replace(SUMS[0], rest_above_mean=-0.005), SUMS[1]))
    assert "mean logit: embedding +0.00, biases +0.00, other blocks -0.01" in written.text(position=0)


def of_long_tokens(outputs: int, predictions: int) -> tuple[Trace, Comparison]:
    """A trace, and a comparison with itself, of nothing but a token of 60 characters, so many times on top."""
    long = Token(8, "x" * 60)
    place = state(0, 0, best(*[long] * outputs), dominant(0, 12, 1.0, long), event="ffn")
    at = Position(0, long, best(*[long] * predictions), Decision(0, 0), Decision(0, 0))
    part = LayerPart(0, 0.5, 0.5, 0.5, 0.5, 1.0, (AttendedToken(long, 0, 1.0),))
    found = Trace("tiny", "", "x", None, (at,), ((place,),), (replace(SUMS[0], layers=(part,)),))
    change = Difference(0, long, long, True, 0.5, (Shift(long, 0.5, 0.5, 0.0),))
    return found, Comparison(found, found, (change,), None, None)


@pytest.mark.usefixtures("terminal")
def test_long_tokens_are_cut() -> None:
    """The token of a row to 20 cells, a prediction to 24 or 15, a memory's vote to what is left of 40, one of a
    heading to 30."""
    cut, compared = of_long_tokens(1, 2)
    lines = cut.text().splitlines()
    assert lines[3] == f"       0  {'x' * 19}…  {'x' * 17}… 0.500  {'x' * 8}… 0.250  layer 0"
    assert lines[5].startswith(f"Layer by layer after position 0, {'x' * 29}…: what")
    assert lines[7] == f"    0  ·sat 0.500  ·cat 0.250    {'x' * 8}… 0.500  ffn         7  100.0% +L0.M12 → {'x' * 22}…"
    assert lines[9].startswith(f"Who wrote {'x' * 29}…, 1.00 above")
    assert lines[11].endswith(f"  {'x' * 11}…@0 100%")
    assert compared.text().splitlines()[4] == f"       0  {'x' * 19}…  {'x' * 23}…  {'x' * 23}…  0.5000"
    assert compared.text().splitlines()[8] == f"{'x' * 29}…  0.5000  0.5000  +0.0000"


def test_in_a_pipe_nothing_is_cut() -> None:
    """Neither a token of 60 characters nor the line that it makes."""
    whole, compared = of_long_tokens(2, 4)
    for text in (str(whole), str(compared)):
        assert "…" not in text
        assert text.count("x" * 60) == text.count("x") // 60 > 8
    assert max(map(len, str(whole).splitlines())) > 300


def test_a_table_ends_at_the_edge_of_a_terminal_without_losing_a_number() -> None:
    table = Table(("memory", ">F", "about"), [["L10.M222", "+1.234", "y" * 70]], (16, 8, 60))
    assert table.lines()[1] == f"L10.M222  +1.234  {'y' * 70}"
    for width, shown in ((200, "y" * 59 + "…"), (60, "y" * 41 + "…"), (10, "y" * 39 + "…")):
        with for_terminal(width):
            assert table.lines()[1] == f"L10.M222  +1.234  {shown}"


def rows(html: str) -> list[list[str]]:
    """The cells of every row of the tables, as they are read."""
    return [
        [unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)]
        for row in re.findall(r"<tr[^>]*>(.*?)</tr>", html, re.S)
    ]


def test_a_trace_in_a_notebook() -> None:
    """Layers by tokens with the final predictions below; then the last position's layers, with three memories each."""
    weak = [dominant(0, number, 0.015625, SAT) for number in range(20, 24)]
    places = ((PLACES[0][0], replace(PLACES[0][1], memories=(*STRONG, *weak))), PLACES[1])
    html = replace(TRACE, places=places)._repr_html_()
    shown = [[cell.replace(" the final prediction", "").replace("\xa0", " ") for cell in row] for row in rows(html)]
    assert shown[:4] == [
        ["layer", "the", "·cat"],
        ["0", "·sat", "·<mat>"],
        ["1", "·cat", "·sat"],
        ["→", "·cat", "·sat"],
    ]
    strong = "L0.M12 ·<mat> 100 % L0.M3 ·of·eighteen·signs 6.2 % L0.M5 the 3.1 %"
    assert shown[5:] == [
        ["0", "·sat 50.0 % ✓", "·cat 25.0 %", "·<mat> 50.0 %", "residual", strong, "output for good"],
        ["1", "·sat 50.0 % ✓", "·cat 25.0 %", "·sat 75.0 % ✓", "agreement", "", "residual for good"],
    ]
    assert "<p>tiny: 2 tokens, 2 layers. Each cell" in html
    assert "After position 1, <span" in html
    # Layer 1 says `cat`, the prediction after `the`, with certainty, and `sat` with 0.75; layer 0 says `sat`, which is
    # not the prediction after `the`, and after `cat` has it second, with 0.25. A shade is the root in tenths.
    assert re.findall(r'<td class="(h[0-9])( top)?"', html) == [("h0", ""), ("h5", ""), ("h9", " top"), ("h8", " top")]
    titles = [unescape(title).replace("\xa0", " ") for title in re.findall(r'<a[^>]* ?title="([^"]*)"', html)]
    streams = ("residual: ·sat 50.0 %, ·cat 25.0 %", "feed-forward update: ·cat 25.0 %")
    assert titles[3].split("\n") == ["layer 0, position 1: residual", *streams, "output: ·<mat> 50.0 %, ·sat 25.0 %"]
    assert html.count("<div") == html.count("</div>")
    assert "href" not in html.partition("</style>")[2]
    changed = replace(TRACE, interventions=(Intervention(MemoryId(0, 3)),))
    assert "tiny: 2 tokens, 2 layers with L0.M3=0. Each" in changed._repr_html_()


COMPARED = """\
Before and after L0.M3=0
The top token differs after 1 of 2 positions and at 2 of 4 places of the layers.

position  token  before                    after             KL
       0  the    ·cat 0.500                ·sat 0.500 *  0.1250
       1  ·cat   ·of·eighteen·signs 0.500  ·sat 0.750    0.0000

Probabilities after position 0
token   before   after   change
·sat    0.2500  0.7500  +0.5000
·cat    0.5000  0.1250  -0.3750
·<mat>  0.0000  0.3750  +0.3750

Continued before:
  ·sat·cat

Before. Layer by layer after position 0, the: what is on top, and who contributes most"""


def test_a_comparison_in_a_terminal() -> None:
    shares = ((CAT, 0.5, 0.125, -0.375), (SAT, 0.25, 0.75, 0.5), (THE, 0.1, 0.1, 0.0), (MAT, 0.0, 0.375, 0.375))
    shifts = tuple(Shift(*one) for one in shares)
    differences = (Difference(0, CAT, SAT, True, 0.125, shifts), Difference(1, LONG, SAT, False, 0.0, ()))
    before = replace(TRACE, positions=(POSITIONS[0], replace(POSITIONS[1], prediction=best(LONG))))
    moved = (replace(PLACES[1][0], residual=best(MAT), output=best(SAT)), replace(PLACES[1][1], ffn=best(THE)))
    positions = (replace(POSITIONS[0], prediction=best(SAT)), POSITIONS[1])
    after = replace(TRACE, positions=positions, places=(PLACES[0], moved))
    after = replace(after, interventions=(Intervention(MemoryId(0, 3)),))
    steps = tuple(Step(2 + number, token, 0.5, best(token), False) for number, token in enumerate((SAT, CAT)))
    compared = Comparison(before, after, differences, Generated(" sat cat", steps), None)
    text = compared.text(position=0, shown=3)
    assert text.splitlines()[:17] == COMPARED.splitlines()
    assert "\nAfter. Layer by layer after position 0, the: what is on top" in text
    assert text.count("Continued") == 1
    assert "Probabilities after position 1\ntoken  before  after  change\n\nContinued" in str(compared)
    sat, cat, the = ({"before": one.to_dict()} for one in (SAT, CAT, CAT))
    sat["after"], cat["after"], the["after"] = MAT.to_dict(), SAT.to_dict(), THE.to_dict()
    assert compared.changed_places() == [
        {"layer": 1, "position": 0, "residual": sat, "output": cat},
        {"layer": 1, "position": 1, "ffn": the},
    ]
    found = compared.to_dict()
    assert (found["interventions"], list(found["generation"])) == (["L0.M3=0"], ["before"])
    assert replace(compared, generated_before=None).to_dict()["generation"] is None


@pytest.mark.parametrize(
    ("lengths", "lines"),
    [([], [2]), ([58, 58], [118]), ([58, 59], [60, 61]), ([10] * 12, [112, 12]), ([116, 1], [118, 3]), ([117], [119])],
)
def test_a_continuation_in_lines(lengths: list[int], lines: list[int]) -> None:
    """Indented by two, in lines of 118, but for a longer token; none is divided."""
    steps = tuple(Step(0, Token(0, "x" * length), 1.0, (), False) for length in lengths)
    assert [len(line) for line in continuation_lines(steps)] == lines


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("ab  cd", 5, "ab…"),
        ("漢字漢字", 8, "漢字漢字"),
        ("漢字漢字", 6, "漢字…"),
    ],
)
def test_what_does_not_fit_ends_in_an_ellipsis(text: str, width: int, fitted: str) -> None:
    assert fit(text, width) == fitted
    assert cell_len(fitted) <= width


def test_the_position_that_is_meant() -> None:
    assert [choose_position(3, position) for position in (None, 0, 2, -1, -3)] == [2, 0, 2, 2, 0]
    for position in (3, -4):
        said = f"^position {position} is not in the prompt, which has positions 0 to 2$"
        with pytest.raises(PromptError, match=said):
            choose_position(3, position)


def test_results_do_not_flood_a_terminal_that_echoes_them() -> None:
    """`repr` of a trace of 13 tokens had 362,597 characters."""
    model = load_model("builtin:pydocs", device="cpu")
    traced, changed = trace(model, "Return the arbitr"), compare(model, "Return", {"L5.M367": 0.0})
    assert repr(traced) == "<Trace of builtin:pydocs: 6 tokens, 6 layers; print it to read it>"
    for result in (traced, changed):
        assert len(repr(result)) < 200
        assert len(str(result)) > 500, "it can still be read"
