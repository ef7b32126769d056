"""What is told of routing, against counts by hand, of an atlas of experts whose routing is known by construction."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from math import log
from pathlib import Path

import pytest

from mnemoscope.atlas import open_atlas
from mnemoscope.foundation.formatting import format_value
from mnemoscope.show.export import write_report
from mnemoscope.show.figures.page_svg import page_svg
from mnemoscope.show.figures.routing import routing, routing_chart
from models.planted_experts import EXPERTS, LAYERS, PLANTED_EXPERTS, ROUTES, SENTENCES, WORDS


def test_shares_and_evenness(experts_atlas: Path) -> None:
    words = [word for sentence in SENTENCES for word in sentence.split()]
    found = routing(open_atlas(experts_atlas))
    assert [one.layer for one in found] == list(range(LAYERS))
    for one in found:
        counts = Counter(e for word in words for e in ROUTES[one.layer, WORDS.index(word)])
        assert [row["name"] for row in one.experts] == [f"E{e}" for e in range(EXPERTS)]
        assert [row["share"] for row in one.experts] == pytest.approx([counts[e] / len(words) for e in range(EXPERTS)])
        p = [counts[e] / (2 * len(words)) for e in range(EXPERTS)]
        assert one.evenness == pytest.approx(-sum(x * log(x) for x in p) / log(EXPERTS))


def test_overlaps_are_those_of_the_planted_words(experts_atlas: Path) -> None:
    """A memory fires on one word, so two of them share all of their tokens or none."""
    for one in routing(open_atlas(experts_atlas)):
        planted = [p for p in PLANTED_EXPERTS if p.memory.layer == one.layer]
        pairs = list(combinations(planted, 2))
        for alike, found in ((True, one.same), (False, one.different)):
            own = [a.word == b.word for a, b in pairs if (a.memory.expert == b.memory.expert) is alike]
            assert found.count == 2_000
            assert found.low - 0.02 <= sum(own) / len(own) <= found.high + 0.02


def test_it_is_drawn(experts_atlas: Path) -> None:
    svg = page_svg(routing_chart(routing(open_atlas(experts_atlas))), name="routing", label="routing", silent=True)
    assert svg.count("<path") >= EXPERTS * LAYERS
    assert all(f">E{e}<" in svg for e in range(EXPERTS))


@pytest.mark.full
def test_the_report_has_the_figure_and_the_numbers(experts_atlas: Path, copied: Callable[[Path], Path]) -> None:
    report = write_report(copied(experts_atlas))
    assert {f"figures/routing.{ending}" for ending in ("svg", "png", "pdf")} <= set(report.files)
    page = (report.directory / "index.html").read_text()
    section = page[page.index('<section id="routing"') : page.index('<section id="memories"')]
    for one in routing(open_atlas(experts_atlas)):
        routed = sorted(one.experts, key=lambda row: -row["tokens"])
        assert f'<th scope="row">{one.layer}</th><td class="n">{format_value(one.evenness, "share")}</td>' in section
        most = f'{routed[0]["name"]} <small class="soft">{format_value(routed[0]["share"], "share")}</small>'
        assert f'<td class="n">{most}</td>' in section
