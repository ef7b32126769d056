"""The page of the comparisons that were saved in the atlas (`compare --save`), and what the report shows of them."""

from typing import Any

from mnemoscope.atlas import Atlas
from mnemoscope.atlas.manifest import COMPARISONS
from mnemoscope.comparison import saved_comparisons
from mnemoscope.comparison.result import draw, layer_table
from mnemoscope.errors import AtlasDamaged, MemoryIdError
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.edition import Edition
from mnemoscope.show.pages.page import Page, PageKind, PageNotFound

MOST = 200
"""Changed features that are listed of a pair."""


def comparison_page(edition: Edition) -> Page:
    """What changed between this atlas and those that it was compared with."""
    comparisons = edition.read_current(COMPARISONS, lambda: comparison_views(edition.atlas))
    if not comparisons:
        raise PageNotFound("The atlas was not compared with another; `mnemoscope compare ATLAS OTHER --save` does so.")
    return Page("comparison.html", "Comparison", {"comparisons": comparisons})


def comparison_views(atlas: Atlas) -> list[dict[str, Any]]:
    """Of each comparison its drawing and its pairs, each with a table of layers and the first changed features. Raises
    AtlasDamaged for a document of another form.
    """
    # Imports the drawing library.
    from mnemoscope.show.figures.chart import STYLE
    from mnemoscope.show.figures.page_svg import page_svg

    views = []
    for number, document in enumerate(saved_comparisons(atlas)):
        try:
            pairs = [
                pair
                | {
                    "changed": [row | {"memory": str(MemoryId.parse(row["memory"]))} for row in pair["changed"][:MOST]],
                    "count": len(pair["changed"]),
                    "table": layer_table(pair["layers"]),
                }
                for pair in document.get("pairs", [document])
            ]
            specification = draw(document).to_dict() | {"config": STYLE | {"header": {"labelColor": "currentColor"}}}
        except MemoryIdError as error:
            raise AtlasDamaged(f"{atlas.path}: a saved comparison is damaged ({error!r}); compare again") from error
        name, label = f"comparison-{number}", "Jaccard of triggers by layer"
        views.append({"pairs": pairs, "drawing": page_svg(specification, name=name, label=label, silent=True)})
    return views


PAGES = (
    PageKind(
        "comparison",
        "/compare",
        comparison_page,
        label="Compare",
        needs=COMPARISONS,
        about="which memories changed between this atlas and others of its text.",
    ),
)
