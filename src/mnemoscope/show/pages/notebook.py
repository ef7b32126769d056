"""What a notebook shows of a memory, a trace, an attribution and a difference: the pages' partial templates, and with
them those rules of the pages' style sheet that they need, which hold inside alone. No script, no link, nothing fetched.
"""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from markupsafe import Markup, escape

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.features import promoted_tokens
from mnemoscope.atlas.memory_document import MemoryDocument
from mnemoscope.foundation.formatting import format_value, show_token
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.patterns.labels import listed_labels
from mnemoscope.show.pages.edition import Data
from mnemoscope.show.pages.model.diff import DiffAddress, DiffView
from mnemoscope.show.pages.model.edges import draw_edges
from mnemoscope.show.pages.model.trace import STREAMS, TraceAddress, TraceView, draw_effects
from mnemoscope.show.pages.page import environment, template_words
from mnemoscope.show.pages.triggers import group_triggers, triggers_view

LISTED, PROMOTED, GUESSES = 8, 10, 5
"""Of a memory: examples shown at once, tokens that it promotes; of a trace's cell the guesses in its tooltip."""
SCOPE = ".mnemoscope.mnemoscope"
"""Twice, so that its rules come before a notebook's own."""
_OWN = (
    f"{SCOPE}{{background:var(--paper);color:var(--ink);padding:0.5rem;overflow-x:auto;"
    'font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif}'
    f"{SCOPE} tr{{background:none}}"
)


def memory_html(atlas: Atlas, memory: MemoryId) -> str:
    """Its label, what it promotes, and its best triggers, in colour where the atlas has their tokens' coefficients."""
    document = MemoryDocument(atlas, memory, patterns=None)
    triggers, value = triggers_view(document), document.row("value")
    says = {1: value["top_tokens"][0], -1: None} if value else {1: None, -1: None}
    return _page(
        "memory",
        memory=str(memory),
        model=atlas.manifest.model.spec,
        labels={sign: listed_labels(atlas, [(memory, sign)]).get((memory, sign)) for sign in says},
        promotes=value and [atlas.vocabulary.token(token) for token in promoted_tokens(value)[:PROMOTED]],
        examples={
            sign: group_triggers(triggers, sign, says=token, reading=atlas.reading) for sign, token in says.items()
        },
        listed_at_once=LISTED,
        pattern=None,
        carry="",
        **template_words(atlas),
    )


def trace_html(trace: Data, about: str) -> str:
    """Every layer's best token after every token of the prompt, and the way of the last position through the layers."""
    last = trace["positions"][-1]["position"]
    data = {"trace": trace, "layer": len(trace["layers"]) - 1, "position": last, "figure1": None, "dominant": None}
    look = TraceView(TraceAddress(stream="output", cell="token"), data, None)
    look.window = range(len(trace["positions"]))
    heat: Data = {"stream": "output", "probability": [], "rank": []}
    for layer in trace["layers"]:
        best = [
            next(((one["probability"], rank) for rank, one in enumerate(of) if one["id"] == final), (0.0, len(of)))
            for of, final in zip(
                (state["output"] for state in layer["positions"]),
                (one["prediction"][0]["id"] for one in trace["positions"]),
                strict=True,
            )
        ]
        heat["probability"].append([probability for probability, _ in best])
        heat["rank"].append([rank for _, rank in best])
    # What lies behind the recorded guesses has no rank: tooltips name the guesses.
    rows = [
        [{**cell, "title": _guesses(state)} for cell, state in zip(row, layer["positions"], strict=True)]
        for row, layer in zip(look.heat_map(heat), trace["layers"], strict=True)
    ]
    return _page("trace", about=about, look=look, rows=rows)


def _guesses(state: Data) -> str:
    lines = [f"layer {state['layer']}, position {state['position']}: {state['event']}"]
    for stream, name in STREAMS.items():
        best = [f"{show_token(one['text'])} {format_value(one['probability'], 'share')}" for one in state[stream]]
        lines.append(f"{name}: {', '.join(best[:GUESSES])}")
    return "\n".join(lines)


def attribution_html(attribution: Data, title: str) -> str:
    """The direct effects as a waterfall, the memories that the prediction hangs on with bars, their edges, and the
    curve.
    """
    drawn = {"drawn": draw_effects(attribution), "edges": draw_edges(attribution)}
    return _page("attribution", attribution=attribution, title=title, page=TraceAddress(), **drawn)


def difference_html(difference: Data, title: str) -> str:
    """The change of every part as a waterfall, and the memories that changed most on either side, with bars."""
    layers = 1 + max(part["layer"] or 0 for part in difference["parts"])
    wanted = DiffAddress(other="other" if "prompts" in difference else None)
    return _page("difference", difference=difference, title=title, look=DiffView(wanted, difference, layers))


def _page(shown: str, **values: object) -> str:
    html = environment().get_template("notebook.html").render(values, shown=shown, link=_no_link)
    classes = {f".{name}" for names in re.findall(r'class="([^"]*)"', html) for name in names.split()}
    style = "".join(_rules(_style_sheet(), classes | set(re.findall(r"<([a-z0-9]+)", html))))
    return f'<div class="mnemoscope"><style>{_OWN}{style}</style>{html}</div>'


def _no_link(_: str, *, key: str = "", current: str = "", title: str = "") -> Markup:
    """There is no page to go to; what a link says stays."""
    about = {"aria-current": current, "title": title}
    return Markup(" ".join(f'{name}="{escape(value)}"' for name, value in about.items() if value))


@cache
def _style_sheet() -> str:
    text = files("mnemoscope").joinpath("web/static/style.css").read_text(encoding="utf-8")
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def _rules(sheet: str, known: set[str]) -> Iterator[str]:
    """The rules whose classes and elements are all `known`, for what lies in the scope."""
    for selectors, body in re.findall(r"([^{}]+)\{((?:[^{}]|\{[^{}]*\})*)\}", sheet):
        if selectors.strip().startswith("@"):
            inner = "".join(_rules(body, known))
            if inner:
                yield f"{selectors.strip()}{{{inner}}}"
            continue
        kept = [one.strip() for one in selectors.split(",") if _names(one) <= known]
        if kept:
            scoped = ",".join(SCOPE if one == ":root" else f"{SCOPE} {one}" for one in kept)
            yield f"{scoped}{{{body.strip()}}}"


def _names(selector: str) -> set[str]:
    """Classes, elements and (never known) identities of a selector."""
    plain = re.sub(r"\[[^]]*\]|::?[a-z-]+(\([^)]*\))?", "", selector)
    return set(re.findall(r"[.#][\w-]+|(?<![\w.#-])[a-z][a-z0-9]*", plain))
