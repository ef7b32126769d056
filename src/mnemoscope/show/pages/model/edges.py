"""The drawing of which memory feeds which: layers upwards, positions across, the ablated memories as points, edges as
lines. Numbers are placed, not computed; static/edges.js shows the lines of one point.
"""

import math
from collections import Counter

from mnemoscope.foundation.formatting import fit, show_token
from mnemoscope.foundation.memory_names import MemoryId
from mnemoscope.show.pages.edition import Data

WIDTH, LEFT, BELOW = 720, 34, 22
"""Of the drawing; left of the points are the numbers of layers, below them the tokens."""
HEIGHT, TALLEST = 420, 40
"""The most for all layers together, and for one."""
LETTER = 7
"""The width of a letter, and half of what separates the numbers of layers."""
AT_ONCE = 20
"""Lines shown at one time, of one memory or of all; edges.js has the same number."""


def draw_edges(attribution: Data) -> Data | None:
    """The points, the lines between two of them (`source` and `target` are their numbers), the numbers of layers and
    the `lanes` of positions; None without an edge.
    """
    points = [
        {**one, "layer": MemoryId.parse(one["memory"]).layer, "name": f"{one['memory']} at {one['position']}"}
        for one in sorted(attribution["memories"], key=lambda one: one["position"])
        if one["ablation"] is not None
    ]
    numbers, lines = {(one["memory"], one["position"]): number for number, one in enumerate(points)}, []
    for one in attribution["edges"]:
        source, target = (numbers.get((one[end], one[f"{end}_position"])) for end in ("source", "target"))
        if source is not None and target is not None:  # of a list that was shortened
            moved = (one["share"] or 0.0) * points[target]["ablation"]
            lines.append({**one, "source": source, "target": target, "moved": moved})
    if not lines:
        return None
    most = max(abs(one["moved"]) for one in lines) or 1.0
    feeds, fed = (Counter(one[end] for one in lines) for end in ("source", "target"))
    largest = max(abs(one["ablation"]) for one in points) or 1.0
    low, high = (end(one["layer"] for one in points) for end in (min, max))
    step = min(TALLEST, HEIGHT / (high - low + 1))
    return {
        "lines": [{**one, "width": round(0.5 + 3 * math.sqrt(abs(one["moved"]) / most), 1)} for one in lines],
        "lanes": _place(points, [round((high - layer + 0.5) * step, 1) for layer in range(high + 1)]),
        "points": [
            {
                **one,
                "radius": round(2 + 4 * math.sqrt(abs(one["ablation"]) / largest), 1),
                "feeds": feeds[number],
                "fed": fed[number],
            }
            for number, one in enumerate(points)
        ],
        "layers": [
            {"layer": layer, "y": round((high - layer + 0.5) * step, 1)}
            for layer in range(low, high + 1, math.ceil(2 * LETTER / step))
        ],
        "height": round(step * (high - low + 1) + BELOW),
        "width": WIDTH,
        "left": LEFT,
        "at_once": AT_ONCE,
    }


def _place(points: list[Data], heights: list[float]) -> list[Data]:
    """Gives every point its place: those of one position and layer side by side, in a lane as wide as the position's
    fullest layer needs. The lanes, each with the text of its token, as much as has room.
    """
    crowds = Counter((one["position"], one["layer"]) for one in points)
    fullest: dict[int, int] = {}
    for (at, _), count in crowds.items():
        fullest[at] = max(fullest.get(at, 0), count)
    each, left, lanes = (WIDTH - LEFT) / sum(fullest.values()), float(LEFT), dict[int, Data]()
    for at, most in fullest.items():
        lanes[at] = {"left": round(left, 1), "middle": round(left + each * most / 2, 1), "width": each * most}
        left += each * most
    placed = Counter[tuple[int, int]]()
    for one in points:
        lane, crowd = lanes[one["position"]], (one["position"], one["layer"])
        one["x"] = round(lane["left"] + (placed[crowd] + 0.5) * lane["width"] / crowds[crowd], 1)
        one["y"] = heights[one["layer"]]
        placed[crowd] += 1
        lane["text"] = fit(show_token(one["token"]), letters) if (letters := int(lane["width"] / LETTER)) > 1 else ""
    return list(lanes.values())
