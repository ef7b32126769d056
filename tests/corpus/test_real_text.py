"""The room on real text: sentences, held-out share and padding of what users bring. Skips where the text is not."""

import lzma
from pathlib import Path

import pytest

from mnemoscope.corpus import TokenizedCorpus, open_source, prepare
from support.corpus_reference import Words

DATA = Path(__file__).parent.parent.parent.parent / "shared" / "data"

pytestmark = [pytest.mark.data, pytest.mark.skipif(not DATA.is_dir(), reason="no ../shared/data")]


def padding(copy: TokenizedCorpus, batch_tokens: int) -> float:
    batches = copy.batches(batch_tokens)
    widths = [copy.lengths[batches.ids(k)].astype(int) + 1 for k in range(batches.count)]
    return 1 - sum(own.sum() for own in widths) / sum(own.size * own.max() for own in widths)


def test_wikitext_is_read_whole(tmp_path: Path) -> None:
    source = open_source(str(DATA / "wikitext-2" / "valid.txt"))
    copy = prepare(source, Words(), directory=tmp_path, longest=511, split="sentence", vocabulary=5_000)
    # Every word of the text is in a sentence, and the published count has one end of line more per line.
    words = len((DATA / "wikitext-2" / "valid.txt").read_text().split())
    assert copy.counts["tokens"] + copy.counts["without_tokens"] <= words
    assert copy.counts["tokens"] > 0.9 * words
    assert 0.02 < copy.counts["held_out_sentences"] / copy.sentences < 0.15
    assert padding(copy, 4_096) < 0.05


def test_wikipedia_becomes_sentences_of_usual_length(tmp_path: Path) -> None:
    with lzma.open(DATA / "wiki-2015" / "articles.txt.xz", "rt", encoding="utf-8") as file:
        (tmp_path / "part.txt").write_text(file.read(1_000_000), encoding="utf-8")
    source = open_source(str(tmp_path / "part.txt"))
    copy = prepare(source, Words(), directory=tmp_path / "copy", longest=511, split="sentence", vocabulary=5_000)
    assert 15 < copy.lengths.mean() < 30
    assert (copy.lengths < 3).mean() < 0.05
    assert padding(copy, 8_192) < 0.03
