// Which memory feeds which: the lines of the memory that is pointed at or focused, and the table beside them. Without
// this the lines that move F most are shown. The part may come after the page, so nothing is bound to it.
"use strict";

(() => {
  const AT_ONCE = 20; // as the page's first lines
  const pointOf = (at) => at.closest?.(".feeding a[data-point]") ?? null;

  // The lines of one point (null: of all), strongest first as they stand.
  const show = (part, point) => {
    const lines = [...part.querySelectorAll("[data-edge]")].map((line) => ({ line, cells: line.dataset.edge.split("|") }));
    const of = point ? lines.filter(({ cells }) => cells.slice(0, 2).includes(point.dataset.point)) : lines;
    const first = of.slice(0, AT_ONCE);
    for (const one of lines) one.line.classList.toggle("shown", first.includes(one));
    for (const one of part.querySelectorAll("a[data-point]")) one.classList.toggle("chosen", one === point);

    const body = part.querySelector("tbody");
    const rows = first.map(({ cells }) => {
      const row = body.rows[0].cloneNode(true);
      const names = cells.slice(0, 2).map((end) => part.querySelector(`a[data-point="${end}"]`).dataset.name);
      [...names, ...cells.slice(2)].forEach((text, column) => (row.cells[column].textContent = text));
      return row;
    });
    // A memory without edges leaves the table's one row as a pattern for those of the next.
    body.hidden = !rows.length;
    if (rows.length) body.replaceChildren(...rows);
    const said = part.querySelector("[data-of]");
    said.dataset.all ??= said.textContent;
    said.textContent = point ? `${point.dataset.name}: ${first.length} of its ${of.length} edges` : said.dataset.all;
    part.querySelector("[data-every]").hidden = !point;
  };

  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, ({ target }) => {
      const point = pointOf(target);
      if (point) show(point.closest(".feeding"), point);
    });
  }
  document.addEventListener("click", ({ target }) => {
    const every = target.closest?.("[data-every]");
    if (every) show(every.closest(".feeding"), null);
  });
})();
