"""Atlases for the questions: only the tables and columns that a question reads are given, the rest is filled in.

Twenty tokens, `w0` to `w19` but for a few words; memories, triggers and predictions are whatever a test lays out. Not a
test itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.derived_manifest import record_hashes
from mnemoscope.atlas.features import AT_WORK, FEATURE_COLUMNS
from mnemoscope.atlas.manifest import seal
from mnemoscope.atlas.schema import TABLES
from mnemoscope.atlas.store import write_sentences, write_table
from support.handbuilt_atlas import PROVENANCE, activity_columns, manifest

RULERS = ("plain", "ridge", "tuned")
VOCABULARY = 20
WORDS = {0: "<|end|>", 1: " the", 2: "Of", 3: " cat", 4: ".", 5: "'s"}
"""Tokens 1, 2 and 5 are stop words."""
MASK = 19
LENGTH = 8
"""Tokens of every sentence: sentence s is s, s + 1, ..."""

Trigger = tuple[int, int | None] | tuple[int, int | None, int]
Value = (
    tuple[int, int | None, int | None, float, float, float | None]
    | tuple[int, int | None, int | None, float, float, float | None, float | None]
)
"""Top token, target, its rank, largest probability, norm, log probability of next tokens; typical probability."""

Effects = tuple[float, float, int, int]
"""Direct effect, attribution, and of eight prefixes those where each is among the 20 largest."""


def build_answers(
    directory: Path,
    *,
    model_layers: int | None = None,
    memories: int = 4,
    active: int = 4,
    triggers: Mapping[int, Sequence[Trigger]] | None = None,
    lowest: Mapping[int, Sequence[Trigger]] | None = None,
    values: Mapping[int, Sequence[Value]] | None = None,
    next_counts: Mapping[int, int] | None = None,
    counts: Mapping[int, int] | None = None,
    own: Mapping[int, Sequence[float | None]] | None = None,
    patterns: Iterable[tuple[int, int, str, Sequence[int]]] | None = (),
    removals: Iterable[Sequence[Any]] | None = (),
    prefixes: Sequence[tuple[int, int, int, int]] | None = (),
    predictions: Mapping[tuple[int, int], Mapping[str, float | None]] | None = None,
    roles: Mapping[int, Sequence[tuple[int | None, int | None]]] | None = None,
    attention: bool = True,
    width: Sequence[int] | None = None,
    lenses: Sequence[str] = (),
    memorised: Sequence[tuple[bool, int, Sequence[int]]] | None = None,
    importance: Mapping[int, Sequence[Effects]] | None = None,
    inside: int = LENGTH,
    words: Mapping[int, str] = WORDS,
    **changes: Any,
) -> Atlas:
    """A sealed atlas, opened. The layers are those that `triggers`, `values` or `predictions` name.

    triggers, lowest: per layer (memory, next token[, prefix group]), each memory's in order of rank
    values: per layer and memory (top token, target, its rank, max probability, norm, log probability)
    own: makes it an atlas of a model that reads sentences whole: per layer the column `own_coefficient` of its
        triggers, whose next token is then their own one; a trigger of rank r has the coefficient 50 - r
    patterns: (layer, memory, kind, ranks); None leaves the table out, as for the other three
    removals: (layer, memory, rank, removed, coefficient, removed coefficient[, position, else 1])
    prefixes: (document, position, next token, final top); predictions: (prefix, layer) -> columns other than 0
    attention: whether there is a table of that name, where there are prefixes; `predictions` may give its columns too
    roles: per layer and memory the ranks of its own trigger's last token under its key, and of another memory's
    lenses: the rulers that values and residuals were read with, which all say the same
    memorised: of each document whether it is held out, tokens agreed of 32, sentences (`inside` tokens of each)
    importance: per layer and memory its two effects, and how often of eight prefixes each is among the largest
    width: the documents of its text; the first half of the useful memories matters, random ones matter all
    """
    predictions = predictions or {}
    named = {layer for _, layer in predictions} | {*(triggers or {})} | {*(values or {})}
    layers = sorted(named or {0})
    depth = max(layers) + 1 if model_layers is None else model_layers
    tokens = range(VOCABULARY)
    texts = [words.get(token, f" w{token}") for token in tokens]
    nexts = [(next_counts or {}).get(token, 0) for token in tokens]
    every = nexts if counts is None else [counts.get(token, 0) for token in tokens]
    _write(directory, "vocabulary", {"token": tokens, "text": texts, "bytes": [text.encode() for text in texts]})
    _write(directory, "tokens", {"token": tokens, "count": every, "next_count": nexts, "first_count": nexts})
    _write(directory, "background", {"sentence": [0], "position": [0], "token": [0], "next_token": [1]})
    triggered = [*(triggers or {}).values(), *(lowest or {}).values()]
    count = max([1, len(prefixes or ()), *map(len, triggered)])
    sentences = {"sentence": range(count), "text": ["words"] * count, "multiplicity": [1] * count}
    sentences |= {"document": ([document for document, *_ in prefixes or ()] + [0] * count)[:count]}
    sentences |= {"tokens": [[(first + place) % VOCABULARY for place in range(LENGTH)] for first in range(count)]}
    write_sentences(directory, [sentences | {"held_out": [True] * count}], provenance=PROVENANCE)
    for layer in layers:
        rows = _trigger_columns((triggers or {}).get(layer, ()), (lowest or {}).get(layer, ()))
        if own is not None:
            rows |= {"token": rows["next_token"], "next_token": [None] * len(rows["rank"])}
            rows |= {"own_coefficient": list(own[layer])}
        _write(directory, "triggers", rows, layer)
        _write(directory, "values", _value_columns((values or {}).get(layer, ())), layer)
        _write(directory, "activity", activity_columns(active), layer)
        _write(directory, "neighbours", {name: [] for name in TABLES["neighbours"].columns.names}, layer)
        if roles is not None:
            _write(directory, "roles", _role_columns(roles[layer]), layer)
        if importance is not None:
            _write(directory, "importance", _importance_columns(importance[layer]), layer)
    if lenses:
        for layer in layers:
            _write(directory, "readings", _reading_columns((values or {}).get(layer, ()), lenses), layer)
            _write(directory, "key_readings", _key_reading_columns((roles or {}).get(layer, ()), lenses), layer)
        _write(directory, "readouts", _readout_columns(predictions, lenses))
    if memorised is not None:
        _write(directory, "memorised", _memorised_columns(memorised, inside))
    if width is not None:
        _write(directory, "width", _width_columns(width, layers, memories))
    if removals is not None:
        _write(directory, "removals", _removal_columns(removals))
    if prefixes is not None:
        _write(directory, "prefixes", _prefix_columns(prefixes))
        _write(directory, "predictions", _prediction_columns(predictions))
        if attention:
            _write(directory, "attention", _attention_columns(predictions))
    sizes = {"layers": depth, "memories": [memories] * depth, "vocabulary": VOCABULARY}
    model = {"spec": "handbuilt", "revision": None, "fingerprint": PROVENANCE.model, "sizes": sizes}
    if own is not None:
        model |= {"reading": {"before": [0], "after": [1], "first": 0, "predicts": "same", "mask": MASK}}
    plan = {"model": "gpt2", "corpus": "my text.txt", "seed": 7}
    seal(directory, manifest(**{"model": model, "plan": plan, "layers": layers} | changes))
    if patterns is not None:
        write_patterns(directory, patterns)
    return open_atlas(directory)


def write_patterns(directory: Path, patterns: Iterable[tuple[int, int, str, Sequence[int]]]) -> None:
    """Writes patterns.parquet and covers it, as if it had been made from the finished atlas."""
    columns: dict[str, list[Any]] = {name: [] for name in TABLES["patterns"].columns.names}
    for layer, memory, kind, ranks in patterns:
        known = zip(columns["layer"], columns["memory"], strict=True)
        number = sum(1 for place in known if place == (layer, memory))
        row = (layer, memory, number, kind, "words", list(ranks), 2.0, -5.0)
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value)
    _write(directory, "patterns", columns)
    record_hashes(open_atlas(directory), "analyses", ["patterns.parquet"])


def _write(directory: Path, name: str, columns: Mapping[str, Any], number: int | None = None) -> None:
    write_table(directory / TABLES[name].path(number), columns, name=name, provenance=PROVENANCE)


def _trigger_columns(highest: Sequence[Trigger], lowest: Sequence[Trigger]) -> dict[str, Any]:
    rows = []
    for sign, given in ((1, highest), (-1, lowest)):
        ranks: dict[int, int] = {}
        for memory, following, *group in given:
            rank = ranks.get(memory, 0)
            ranks[memory] = rank + 1
            rows.append((memory, -sign, rank, following, group[0] if group else rank))
    rows.sort(key=lambda row: row[:3])
    memory, minus, rank, following, group = ([row[i] for row in rows] for i in range(5))
    sign_of = [-sign for sign in minus]
    columns = {"memory": memory, "sign": sign_of, "rank": rank, "sentence": rank, "token": [3] * len(rows)}
    columns |= {"coefficient": [sign * (50.0 - place) for sign, place in zip(sign_of, rank, strict=True)]}
    position = [0 if place == 0 else 1 for place in rank]
    return columns | {"position": position, "next_token": following, "prefix_group": group}


def _value_columns(rows: Sequence[Value]) -> dict[str, Any]:
    top, target, rank, probability, norm, log_p = ([row[i] for row in rows] for i in range(6))
    count = len(rows)
    ordered = [[token, *[other for other in range(VOCABULARY) if other != token]] for token in top]
    columns = {"memory": range(count), "key_norm": [1.0] * count, "value_norm": norm, "entropy": [1.0] * count}
    columns |= dict.fromkeys(("top_tokens", "bottom_tokens"), ordered)
    columns |= dict.fromkeys(("top_scores", "bottom_scores"), [[0.0] * VOCABULARY] * count)
    columns |= {"max_probability": probability, "target": target, "target_rank": rank, "trigger_log_probability": log_p}
    literal = {"top": top, "target": target, "target_rank": rank, "max_probability": probability}
    columns |= {f"literal_{name}": column for name, column in literal.items()}
    at_work = [row[6] if len(row) > 6 else None for row in rows]
    columns |= dict.fromkeys(("working_logit", "working_probability"), at_work)
    return columns | dict.fromkeys(("up_norm", AT_WORK[1], *FEATURE_COLUMNS[:3], FEATURE_COLUMNS[4]), [None] * count)


def _attention_columns(predictions: Mapping[tuple[int, int], Mapping[str, float | None]]) -> dict[str, Any]:
    """Attention adds 1 to the final token's logit of 6, the feed-forward layer 2, the embedding 3, if not given."""
    places = sorted(predictions)
    known = {"prefix": [prefix for prefix, _ in places], "layer": [layer for _, layer in places]}
    parts: dict[str, float | None] = {"attention_logit": 1.0, "ffn_logit": 2.0, "embedding_logit": 3.0}
    parts |= {"final_logit": 6.0, "ffn_alone_top": None}
    more = [
        column.name for column in TABLES["attention"].of_some if any(column.name in one for one in predictions.values())
    ]
    names = [name for name in (*TABLES["attention"].columns.names, *more) if name not in known]
    rows = [{**parts, **predictions[place]} for place in places]
    for row in rows:  # without attention that could be told apart there is none of its parts
        if row["attention_logit"] is None:
            row |= dict.fromkeys(f"attention_logit_{kind}" for kind in ("mean", "other", "next", "other_next"))
    return known | {name: [row.get(name, 0) for row in rows] for name in names}


def _role_columns(rows: Sequence[tuple[int | None, int | None]]) -> dict[str, Any]:
    """A rank below 5 is among the tokens that the key is closest to; cosines are 1 less a tenth of the rank. On a text
    the key has the rank that its own trigger has, and the shuffled key that of another memory's. Memory 0 adds to what
    it reads, 1 removes it, and so on; what has no rank has no cosine.
    """
    columns: dict[str, Any] = {"memory": range(len(rows)), "key_top_tokens": [range(5)] * len(rows)}
    columns["key_top_cosines"] = [[0.5] * 5] * len(rows)
    for place, (one, many) in enumerate((("trigger", "triggers"), ("control", "controls"))):
        ranks = [row[place] for row in rows]
        columns[f"{one}_token"] = [None if rank is None else rank for rank in ranks]
        columns[f"{one}_rank"] = columns["shuffled_rank" if place else "text_rank"] = ranks
        columns[f"{one}_cosine"] = [None if rank is None else 1 - rank / 10 for rank in ranks]
        columns[f"{many}_found"] = [None if rank is None else float(rank < 5) for rank in ranks]
    cosines = [None if row[0] is None else (0.5, -0.5)[place % 2] for place, row in enumerate(rows)]
    columns |= dict.fromkeys(("up_value", "gate_value", "gate_up"), [None] * len(rows)) | {"key_value": cosines}
    for name, bound in (("removes_below", -0.25), ("adds_above", 0.25)):
        columns[name] = [None if cosine is None else bound for cosine in cosines]
    return columns


def _reading_columns(rows: Sequence[Value], lenses: Sequence[str]) -> dict[str, Any]:
    """Every ruler says of a value what the table of values says; the control's rank is the last one."""
    said = [(lens, memory, row) for lens in lenses for memory, row in enumerate(rows)]
    lens, memory, values = ([one[place] for one in said] for place in range(3))
    columns = {"memory": memory, "lens": lens, "top_tokens": [[row[0]] for row in values]}
    columns |= {"target_rank": [row[2] for row in values], "max_probability": [row[3] for row in values]}
    return columns | {"control_rank": [None if row[1] is None else VOCABULARY - 1 for row in values]}


def _key_reading_columns(rows: Sequence[tuple[int | None, int | None]], lenses: Sequence[str]) -> dict[str, Any]:
    """The rulers that keys have, all but the last, say of a key what the table of roles says."""
    of_keys = [lens for lens in RULERS[:2] if lens in lenses]
    said = {name: list(each) * len(of_keys) for name, each in _role_columns(rows).items()}
    lens = [lens for lens in of_keys for _ in rows]
    return {name: lens if name == "lens" else said[name] for name in TABLES["key_readings"].columns.names}


def _readout_columns(
    rows: Mapping[tuple[int, int], Mapping[str, float | None]], lenses: Sequence[str]
) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {name: [] for name in TABLES["readouts"].columns.names}
    for (prefix, layer), given in sorted(rows.items()):
        for lens in lenses:
            known = {"prefix": prefix, "layer": layer, "lens": lens, "residual_control_rank": VOCABULARY - 1}
            for name in columns:
                columns[name].append({**given, **known}.get(name, 0))
    return columns


def _width_columns(documents: Sequence[int], layers: Sequence[int], memories: int) -> dict[str, Any]:
    """Ten tokens a document; of them nine stop above no probability, one above half, which is right."""
    names = ("layer", "kind", "memories", "draw", "threshold", "document", "tokens", "loss", "stopped", "wrong")
    rows: list[tuple[Any, ...]] = []
    for number in documents:
        rows.append((None, "whole", None, None, None, number, 10, 20.0 + number, None, None))
        for layer in layers:
            for gone in range(1, memories + 1):
                useful = max(0, gone - memories // 2)
                rows.append((layer, "least", gone, None, None, number, 10, 20.0 + number + useful, None, None))
                for draw in range(4):
                    lost = 20.0 + number + gone + draw / 8
                    rows.append((layer, "random", gone, draw, None, number, 10, lost, None, None))
            for threshold, stopped, wrong in ((0.0, 9, 4), (0.5, 1, 0)):
                rows.append((layer, "exit", None, None, threshold, number, 10, None, stopped, wrong))
    rows += [(layer, "duplicate", 0, None, None, None, None, None, None, None) for layer in layers]
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _memorised_columns(rows: Sequence[tuple[bool, int, Sequence[int]]], inside: int) -> dict[str, Any]:
    held_out, agreed, sentences = ([row[place] for row in rows] for place in range(3))
    columns = {"document": range(len(rows)), "held_out": held_out, "agreed": agreed, "sentences": sentences}
    columns |= {"loss": [1.0 + number for number in range(len(rows))], "text": ["words"] * len(rows)}
    return columns | {"inside": [[inside] * len(each) for each in sentences]}


def _importance_columns(rows: Sequence[Effects]) -> dict[str, Any]:
    direct, attribution, direct_among, attribution_among = ([row[place] for row in rows] for place in range(4))
    columns = {"memory": range(len(rows)), "prefixes": [8] * len(rows), "direct": direct, "attribution": attribution}
    columns |= {"direct_among_20": [count / 8 for count in direct_among]}
    return columns | {"attribution_among_20": [count / 8 for count in attribution_among]}


def _removal_columns(rows: Iterable[Sequence[Any]]) -> dict[str, Any]:
    listed = list(rows)
    layer, memory, rank, removed, before, after = ([row[i] for row in listed] for i in range(6))
    columns = {"layer": layer, "memory": memory, "sign": [1] * len(listed), "trigger_rank": rank, "removed": removed}
    columns |= {"position": [row[6] if len(row) > 6 else 1 for row in listed], "removed_position": [0] * len(listed)}
    return columns | {"coefficient": before, "removed_coefficient": after}


def _prefix_columns(rows: Sequence[tuple[int, int, int, int]]) -> dict[str, Any]:
    names = ("document", "position", "next_token", "final_top")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    numbers = range(len(rows))
    return {"prefix": numbers, "sentence": numbers, **columns, "literal_final_top": columns["final_top"]}


def _prediction_columns(rows: Mapping[tuple[int, int], Mapping[str, float | None]]) -> dict[str, Any]:
    kinds = TABLES["predictions"].columns
    columns: dict[str, list[Any]] = {name: [] for name in kinds.names}
    for (prefix, layer), given in sorted(rows.items()):
        for name in columns:
            columns[name].append({"prefix": prefix, "layer": layer, **given}.get(name, 0))
    return columns


def numbers(found: Any, name: str, column: str = "value") -> dict[int | None, Any]:
    """Of one name, its values (or another column) by layer; the total is under None."""
    rows = [row for row in found.to_dicts() if row["name"] == name]
    assert rows, f"no rows of {name}"
    by_layer = {row["layer"]: row[column] for row in rows}
    assert len(by_layer) == len(rows), f"{name} is there twice"
    return by_layer
