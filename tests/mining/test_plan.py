"""What a plan settles by itself, and how it is told from another: batches by hand, bounds, differences."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mnemoscope.atlas.manifest import begin
from mnemoscope.errors import AtlasTooNew, OptionError, PlanDiffers
from mnemoscope.foundation.options.mining_options import RULES, MiningOptions
from mnemoscope.models import load_model
from mnemoscope.models.forward.batches import default_batch_tokens
from mnemoscope.runs import plan as mining_plan
from mnemoscope.runs.run import refusal
from mnemoscope.runs.workers.status import run_status
from models import planted_experts


def sizes_of(*widths: int, device: str, parameters: int = 0, **more: Any) -> Any:
    """As much of a model with layers of these widths as decides the size of a batch."""
    return SimpleNamespace(
        sizes=SimpleNamespace(layers=len(widths), parameters=parameters),
        anatomy=SimpleNamespace(memories_at_once=widths.__getitem__),
        device=torch.device(device),
        numberings=more.get("numberings", {}),
        dtype=more.get("dtype", torch.float32),
    )


def test_on_a_cpu_a_layers_coefficients_fill_16_mebibytes_of_experts_twice_as_many() -> None:
    assert default_batch_tokens(sizes_of(256, 1024, 768, device="cpu")) * 1024 * 4 == 16 << 20
    assert default_batch_tokens(sizes_of(1 << 20, device="cpu")) == 256
    assert default_batch_tokens(sizes_of(2, device="cpu")) == 8192
    assert default_batch_tokens(sizes_of(1024, device="cpu", numberings={0: "experts"})) == 8192
    assert default_batch_tokens(sizes_of(2048, device="cpu", numberings={0: "experts"})) == 4096


@pytest.mark.parametrize(
    ("width", "parameters", "dtype", "expected"),
    [
        # 8 GiB where nobody says how much; an eighth of what two copies of the weights leave, 16 bytes a coefficient.
        (8192, 0, torch.float32, 8192),
        (8192, 1, torch.float32, 4096),  # the next power of two below
        (8192, 1 << 29, torch.float32, 4096),
        (8192, 1 << 30, torch.bfloat16, 4096),
        (8192, 1 << 40, torch.float32, 1024),
        (64, 0, torch.float32, 65_536),
    ],
)
def test_elsewhere_a_batch_fills_a_part_of_the_memory(
    width: int, parameters: int, dtype: torch.dtype, expected: int
) -> None:
    assert default_batch_tokens(sizes_of(width, device="mps", parameters=parameters, dtype=dtype)) == expected


def test_batches_are_shuffled_within_runs_of_512() -> None:
    order = mining_plan.batch_order(1_100, seed=3)
    for start, end in ((0, 512), (512, 1_024), (1_024, 1_100)):
        assert sorted(order[start:end]) == list(range(start, end))
        assert not np.array_equal(order[start:end], np.arange(start, end))
    assert np.array_equal(mining_plan.batch_order(1_100, seed=3), order)
    assert not np.array_equal(mining_plan.batch_order(1_100, seed=4), order)
    assert mining_plan.batch_order(0, seed=3).tolist() == []


@pytest.fixture(scope="module")
def plan() -> mining_plan.MiningPlan:
    return mining_plan.MiningPlan.derive(
        MiningOptions(), load_model("handmade:planted"), corpus="text.txt", validation=None
    )


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        *(("triggers", 1, 30_000), ("neighbours", 0, 30_000), ("prefixes", 0, None), ("seed", 0, None)),
        *((name, 1, None) for name in ("batch_tokens", "max_sentences", "max_tokens")),
    ],
)
def test_numbers_of_a_plan_have_bounds(name: str, least: int, most: int | None, plan: mining_plan.MiningPlan) -> None:
    assert getattr(replace(plan, **{name: least}), name) == least
    with pytest.raises(
        OptionError, match=rf"^{name}={least - 1} is impossible; it must be {least} (or more|to {most})$"
    ):
        replace(plan, **{name: least - 1})
    if most is not None:
        assert getattr(replace(plan, **{name: most}), name) == most
        with pytest.raises(OptionError, match=f"^{name}={most + 1} is impossible; it must be {least} to {most}$"):
            replace(plan, **{name: most + 1})


def test_triggers_come_one_or_all_of_a_sentence(plan: mining_plan.MiningPlan) -> None:
    assert [replace(plan, per_sentence=each).per_sentence for each in ("1", "all")] == ["1", "all"]
    with pytest.raises(OptionError, match=r"^per_sentence='2' is not known; choose one of 1, all$"):
        replace(plan, per_sentence="2")


def test_what_a_plan_settles_by_itself(plan: mining_plan.MiningPlan) -> None:
    experts = mining_plan.MiningPlan.derive(MiningOptions(), planted_experts.load(), corpus="text.txt", validation=None)
    assert (plan.triggers, experts.triggers) == (50, 25)
    assert plan.layers == (0, 1, 2)
    assert (plan.removals, plan.corpus_fingerprint) == (None, None)
    assert (plan.dtype, plan.device, plan.rules) == ("float32", "cpu", RULES)
    asked = replace(plan, triggers=7)
    assert mining_plan.MiningPlan.from_document(plan.document(), Path("here")) == plan
    assert plan.hash() == replace(asked, triggers=50).hash() != asked.hash()


def difference(plan: mining_plan.MiningPlan, stored: dict[str, Any], **more: Any) -> tuple[str, str] | None:
    return plan.difference({"plan": stored, "part": None, **more} if stored else {})


def test_another_part_or_another_count_of_the_text_is_told(plan: mining_plan.MiningPlan) -> None:
    stored = {"plan": plan.document(), "part": [1, 2], "counts": {"duplicates": 3, "documents": 5}}
    assert plan.difference(stored, (1, 2), {"duplicates": 3, "more": 2}) is None
    assert plan.difference(stored) == ("part was (1, 2), now None", "the old options")
    assert plan.difference(stored, (1, 2), {"duplicates": 4}) == ("the text's duplicates changed", "the old options")


def test_another_plan_is_told_by_every_difference(plan: mining_plan.MiningPlan) -> None:
    begun = replace(plan, triggers=7, batch_tokens=9).document()
    settled = {**plan.document(), "removals": 12, "corpus_fingerprint": "abc"}
    assert difference(plan, settled) is None
    assert difference(plan, {}) is None
    assert str(refusal(Path("atlas"), difference(plan, begun) or ("", ""), finished=False)) == (
        f"atlas was begun with another plan (triggers was 7, now 50; batch tokens was 9, now {plan.batch_tokens}); "
        "use the old options, another folder, or force=True to start again"
    )
    removals = difference(replace(plan, removals=4), replace(plan, removals=3).document())
    assert removals == ("removals was 3, now 4", "the old options")
    older = replace(plan, torch="1.0")
    said, advice = difference(plan, older.document()) or ("", "")
    assert said == f"torch was '1.0', now {plan.torch!r}"
    assert "--accept-versions to go on" in advice
    said, advice = difference(plan, replace(older, seed=4).document()) or ("", "")
    assert advice == "the old options"
    assert plan.with_versions_of(older.document()) == older


def test_a_plan_of_another_version_of_the_package_is_refused(plan: mining_plan.MiningPlan, tmp_path: Path) -> None:
    stored = plan.document()
    others = {**stored, "rules": RULES - 1}, {**stored, "new": 1}, {name: stored[name] for name in [*stored][1:]}
    for other in others:
        with pytest.raises(PlanDiffers, match=r"^here was made by an unreleased version"):
            mining_plan.MiningPlan.from_document(other, Path("here"))
    said = refusal(Path("here"), difference(plan, others[0]) or ("", ""), finished=False)
    assert str(said) == "here was made by an unreleased version; mine it again with force=True"
    begin(tmp_path, plan={"plan": others[0], "part": None})
    with pytest.raises(AtlasTooNew, match="was made by an unreleased version"):
        run_status(tmp_path)


def test_versions_that_had_a_hand_are_listed_once_in_order() -> None:
    here, old = mining_plan.library_versions(), {"torch": "1.0"}
    assert set(here) == {"torch", "transformers", "tokenizers", "sentencex"}
    assert mining_plan.all_versions([]) == [here]
    assert mining_plan.all_versions([{"versions": [old, here]}, {"versions": None}, {}, {"versions": [old]}]) == [
        old,
        here,
    ]
