"""Atlases of the pages, each made once: one to annotate, of which a test changes its own copy, and the planted one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mnemoscope as ms
from mnemoscope.models import LanguageModel
from mnemoscope.questions.answers import write_all
from models import planted_experts
from reports.reported_atlas import reported
from support.mined import mined_text
from web.judging import annotated_atlas
from web.planted_atlas import SPEC
from web.served import running


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return annotated_atlas(tmp_path_factory.mktemp("untouched") / "atlas")


@pytest.fixture
def atlas(untouched: Path, copied: Callable[[Path], Path]) -> Path:
    return copied(untouched)


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An atlas of the planted experts' sentences, each twice, and the folder of their model."""
    folder = tmp_path_factory.mktemp("experts")
    model = planted_experts.save(folder / "model")
    return mined_text(model, folder, "\n".join(planted_experts.SENTENCES * 2) + "\n").path, model


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return ms.load_model(SPEC)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of an atlas with answers, patterns and hostile texts."""
    atlas = reported(tmp_path_factory.mktemp("atlas"), active=12)
    write_all(atlas)
    with running(atlas.path) as address:
        yield address
