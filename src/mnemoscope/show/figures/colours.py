"""The colours and dashes of all figures: of middle lightness, so that they are readable on white and on black."""

BLUE, ORANGE, GREEN, PURPLE, GREY = "#3b82d6", "#d9730d", "#2c9a66", "#9a6bdb", "#848b96"
PATTERN_COLOURS = (
    ("shallow", "shallow", BLUE),
    ("semantic", "semantic", ORANGE),
    ("both", "shallow and semantic", PURPLE),
    ("none", "no pattern", GREY),
)
"""The kinds of pattern of a trigger: key, label, and colour in Figure 2."""
SOLID: tuple[int, ...] = (1, 0)
DASHED: tuple[int, ...] = (6, 3)
DOTTED: tuple[int, ...] = (2, 3)
