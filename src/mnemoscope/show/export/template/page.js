// Draws every chart in the width that there is, and again when the width changes. Needs window.vegaEmbed; asks no network.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("charts").textContent);
  const places = [...document.querySelectorAll("[data-chart]")];
  const font = getComputedStyle(document.body).fontFamily;
  const WIDEST = 760, NARROW = 480, AXIS = 76;

  const wrapped = (text, characters) => {
    const lines = [""];
    for (const word of text.split(" ")) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length >= characters) lines.push(word);
      else lines[lines.length - 1] = last ? `${last} ${word}` : word;
    }
    return lines;
  };

  const oneColumn = (part) => {
    if (!part || typeof part !== "object") return;
    if (part.orient && part.columns) Object.assign(part, { columns: 1, labelFontSize: 10, symbolSize: 90 });
    Object.values(part).forEach(oneColumn);
  };

  // The specification that the files beside the page were drawn from; the page has the heading and the paper already.
  const fitted = (specification, width) => {
    const own = structuredClone(specification);
    delete own.title;
    own.background = null;
    own.padding = 2;
    own.config.font = font;
    for (const panel of own.vconcat) {
      panel.width = width - AXIS;
      if (width < NARROW) panel.height = 200;
      if (typeof panel.title === "string") panel.title = wrapped(panel.title, width / 7.2);
    }
    if (width < NARROW) oneColumn(own.vconcat);
    return own;
  };

  const drawn = new Map();
  const draw = async (place) => {
    const width = Math.max(260, Math.min(WIDEST, place.clientWidth));
    if (drawn.get(place)?.width === width) return;
    drawn.get(place)?.result?.finalize();
    drawn.set(place, { width });
    try {
      const options = { mode: "vega-lite", renderer: "svg", actions: false, tooltip: { disableDefaultStyle: true } };
      const result = await window.vegaEmbed(place, fitted(figures[place.dataset.chart], width), options);
      drawn.set(place, { width, result });
    } catch (error) {
      place.classList.add("failed");
      place.textContent = "This chart could not be drawn; its picture lies in the folder figures beside this page.";
      console.error(place.dataset.chart, error);
    }
  };

  const all = async () => {
    for (const place of places) await draw(place);
    document.documentElement.dataset.charts = "drawn";
  };

  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(all, 200);
  });
  all();
})();
