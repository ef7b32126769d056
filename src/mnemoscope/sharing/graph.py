"""An attribution as a graph in circuit-tracer's form, which its pages open: `{slug}.json`, `graph-metadata.json`, and
with an atlas a page of each memory (a "feature").

Our links are total effects, through all paths, where circuit-tracer's are direct ones; the graph says so. Its nodes of
tokens and errors are left out: what is not among the listed memories has no node.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnemoscope.atlas import Atlas, open_atlas
from mnemoscope.atlas.memory_document import MemoryDocument
from mnemoscope.errors import ModelDiffers
from mnemoscope.foundation.files import json_bytes
from mnemoscope.foundation.formatting import show_controls
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.foundation.origin import package_version
from mnemoscope.show.export.folder import MadeFolder

if TYPE_CHECKING:
    from mnemoscope.attribution import Attribution

METADATA = "graph-metadata.json"
EXAMPLES = 20
"""Triggers of a memory's page, of each sign."""
_HARMLESS = str.maketrans({"<": "\u2039", ">": "\u203a", '"': "'"})
"""circuit-tracer's pages put labels into HTML as they are, and read a token between double quotes."""


def graph_folder(out: Path, atlas: Path | None) -> MadeFolder:
    """The folder of a graph, which may be replaced. Raises AtlasExists, OptionError, StoreFailed."""
    folder = MadeFolder(out, atlas, None, mark=METADATA, source="model")
    folder.check("a graph")
    return folder


def write_graph(attribution: "Attribution", out: str | Path, *, atlas: Atlas | str | Path | None = None) -> Path:
    """Writes what `attribute` found as a graph for circuit-tracer's pages into a folder, and returns that.

    A link between memories is an edge: the target's activation (coefficient) less that without the source. One to an
    output is F less F without the memory, or its negative to the other output. Raises AtlasExists for a folder of
    something else, ModelDiffers, OptionError, StoreFailed, and what opening and reading an atlas raises.

    Args:
        attribution: What `attribute` returned, or `open_result` of what was saved of it.
        out: The folder to write; a graph that lies there is replaced.
        atlas: An atlas of the model, whose triggers and values make a page for each memory; or its folder.
    """
    opened = atlas if isinstance(atlas, Atlas) or atlas is None else open_atlas(atlas)
    if opened is not None and opened.manifest.model.fingerprint != attribution.made_by["model"]:
        raise ModelDiffers(f"{opened.path} was mined from another model than {attribution.model}; name its own atlas")
    folder = graph_folder(Path(out), None if opened is None else opened.path)
    rows = attribution.memories.filter(attribution.memories["ablation"].is_not_null())
    rows = rows.sort(rows["ablation"].abs(), descending=True, maintain_order=True)
    name = _plain(attribution.model) or "model"
    metadata = _metadata(attribution, rows.height, name)
    graph = {
        "metadata": metadata,
        "qParams": {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""},
        **_nodes_and_links(attribution, rows.to_dicts()),
    }
    files = {f"{metadata['slug']}.json": json_bytes(graph), METADATA: json_bytes({"graphs": [metadata]})}
    if opened is not None:
        for memory in sorted(set(map(MemoryId.parse, rows["memory"]))):
            if memory.layer in opened.layers:
                files[f"{name}/{_feature(memory)}.json"] = json_bytes(_page(opened, memory))
    folder.replace(files.items(), source=attribution.made_by["model"])
    return folder.directory


def _metadata(attribution: "Attribution", memories: int, name: str) -> dict[str, Any]:
    against = "the mean token" if attribution.against is None else repr(attribution.against.text)
    return {
        "slug": _plain(f"attribution {attribution.prompt.lower()}")[:72],
        # A place beside the graph, from which circuit-tracer's own server gives pages of memories; any other name is
        # looked up on a hub.
        "scan": f"./data/{name}",
        "transcoder_list": [],
        "prompt_tokens": list(attribution.tokens),
        "prompt": attribution.prompt,
        "title_prefix": "Total effects, all paths:",
        # Nothing is pruned by sums over paths.
        "node_threshold": None,
        "schema_version": 1,
        "info": {
            "description": (
                f"Which of {attribution.model}'s feed-forward memories made it prefer {attribution.target.text!r} to"
                f" {against}: the {memories} with the largest attributions, each ablated alone. A link is a total"
                " effect, through all paths, with everything behind the ablation computed again; sums over paths count"
                " it twice. Between memories: the target's activation less that without the source. To the first"
                " output: the logit difference less that without the memory; to the second its negative. Influence is"
                " the cumulative share of |ablation|. Tokens, errors and attention have no nodes."
            ),
            "generator": {"name": "mnemoscope", "version": package_version()},
        },
    }


def _nodes_and_links(attribution: "Attribution", rows: list[dict[str, Any]]) -> dict[str, Any]:
    last = len(attribution.tokens) - 1 if attribution.mask is None else attribution.mask
    layer = str(attribution.layers.height + 1)
    total, reached, ids, nodes = sum(abs(row["ablation"]) for row in rows) or 1.0, 0.0, {}, []
    for row in rows:
        memory, said = MemoryId.parse(row["memory"]), row.get("label") or f"at {row['token']!r}"
        place, column = f"{memory.layer}_{_number(memory)}", row["position"] - attribution.position + last
        ids[row["memory"], row["position"]] = f"{place}_{column}"
        reached += abs(row["ablation"])
        nodes.append(
            {
                "node_id": f"{place}_{column}",
                "feature": _feature(memory),
                "layer": str(memory.layer),
                "ctx_idx": column,
                "feature_type": "cross layer transcoder",
                "jsNodeId": f"{place}-0",
                "clerp": _harmless(f"{memory}: {said}"),
                "influence": reached / total,
                "activation": row["coefficient"],
            }
        )
    edges = attribution.edges.select("source", "source_position", "target", "target_position", "change")
    links = [
        {"source": ids[source, at], "target": ids[target, its], "weight": change}
        for source, at, target, its, change in edges.iter_rows()
        if {(source, at), (target, its)} <= ids.keys()  # all, unless the list was shortened
    ]
    target, against = attribution.target, attribution.against
    for sign, token, probability in (
        (1, target, attribution.target_probability),
        (-1, against, attribution.against_probability),
    ):
        if token is None:
            continue
        node = f"{layer}_{token.id}_{last}"
        links += [
            {"source": one, "target": node, "weight": sign * row["ablation"]}
            for one, row in zip(ids.values(), rows, strict=True)
        ]
        nodes.append(
            {
                "node_id": node,
                "feature": token.id,
                "layer": layer,
                "ctx_idx": last,
                "feature_type": "logit",
                "token_prob": probability,
                "is_target_logit": sign == 1,
                "jsNodeId": f"L_{token.id}-{last}",
                "clerp": f'Output "{_harmless(token.text)}" (p={probability or 0.0:.3f})',
            }
        )
    return {"nodes": nodes, "links": links}


def _page(atlas: Atlas, memory: MemoryId) -> dict[str, Any]:
    """The memory's page: its triggers with the activations of their tokens, where the atlas has them (else at the
    trigger alone), and the tokens of its value. It has no quantiles, which the atlas does not know.
    """
    document, examples = MemoryDocument(atlas, memory), []
    value, activity = document.row("value"), document.activity
    read = {(row["sign"], row["rank"]): row for row in document.rows("token_activations") or ()}
    for sign, side in ((1, "above"), (-1, "below")):
        rows = [row for row in document.triggers if row["sign"] == sign][:EXAMPLES]
        listed = [_example(atlas, row, read.get((sign, row["rank"]))) for row in rows]
        examples += [{"quantile_name": f"Triggers {side} zero", "examples": listed}] if listed else []
    tokens = {end: [] if value is None else atlas.token_text(value[f"{end}_tokens"]) for end in ("top", "bottom")}
    return {
        "transcoder_id": str(memory),
        "index": _number(memory),
        "examples_quantiles": examples,
        "top_logits": tokens["top"],
        "bottom_logits": tokens["bottom"],
        "act_min": 0.0,
        "act_max": max(abs(activity["min"]), abs(activity["max"])),
        "activation_frequency": activity["share"],
    }


def _example(atlas: Atlas, row: dict[str, Any], read: dict[str, Any] | None) -> dict[str, Any]:
    """A trigger's sentence, with its activations in the direction of the sign."""
    texts = atlas.vocabulary.split_text(row["tokens"]) if read is None else read["texts"]
    alone = [row["coefficient"] if place == row["position"] else 0.0 for place in range(len(texts))]
    return {
        "tokens": texts,
        "tokens_acts_list": [max(0.0, row["sign"] * one) for one in (alone if read is None else read["coefficients"])],
        "train_token_ind": row["position"],
        "is_repeated_datapoint": False,
    }


def _pair(one: int, other: int) -> int:
    """Cantor's number of a pair."""
    return (one + other) * (one + other + 1) // 2 + other


def _number(memory: MemoryId) -> int:
    """Its number in the layer; of experts one that no other of the layer's memories has."""
    if not memory.expert_text:
        return memory.memory
    expert = 2 * (memory.expert or 0) if memory.shared is None else 2 * memory.shared + 1
    return _pair(expert, memory.memory)


def _feature(memory: MemoryId) -> int:
    return _pair(memory.layer, _number(memory))


def _plain(text: str) -> str:
    """What of a text may stand in the name of a file and in an address as it is."""
    return re.sub("[^A-Za-z0-9._]+", "-", text).strip("-.")


def _harmless(text: str) -> str:
    return show_controls(text).translate(_HARMLESS)
