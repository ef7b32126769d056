// Judging by keyboard: what the buttons of a page do is pressed by the key that stands on them (data-press).
"use strict";

(() => {
  const form = document.getElementById("pattern");
  const help = document.getElementById("keys");
  const boxes = form ? [...form.querySelectorAll("input[name=marks]")] : [];
  const words = form?.querySelector("textarea");

  let at = 0;
  let typed = "";
  let typing = 0;
  const go = (row) => {
    at = Math.min(boxes.length - 1, Math.max(0, row));
    boxes[at]?.focus();
  };
  boxes.forEach((box, row) => box.addEventListener("focus", () => (at = row)));
  const number = (digit) => {
    clearTimeout(typing);
    typed = Number(typed + digit) <= boxes.length ? typed + digit : digit;
    typing = setTimeout(() => (typed = ""), 1000);
    go(Number(typed) - 1);
  };
  const press = (key) => {
    const found = [...document.querySelectorAll("[data-press]")].find((one) => one.dataset.press === key && !one.disabled);
    found?.click();
    return Boolean(found);
  };
  const before = () => {
    const chips = [...form.querySelectorAll(".slot")];
    const here = chips.findIndex((one) => one.hasAttribute("aria-current"));
    (chips[here - 1] ?? chips[chips.length - 2])?.click();
  };

  function key(event) {
    const on = event.target;
    const rows = boxes.length > 0 && !boxes[0].matches(":disabled");
    if (on === words) {
      if (event.key !== "Escape" && (event.key !== "Enter" || event.shiftKey)) return false;
      go(at);
      return true;
    }
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(on.tagName) && !["checkbox", "radio"].includes(on.type)) return false;
    if (["Enter", " "].includes(event.key) && on.closest("button, a, summary")) return false;
    const moving = { j: at + 1, ArrowDown: at + 1, k: at - 1, ArrowUp: at - 1 };
    if (rows && event.key in moving && !(on.type === "radio" && event.key.startsWith("Arrow"))) {
      go(boxes.includes(document.activeElement) ? moving[event.key] : at);
    } else if (rows && (event.key === "x" || (event.key === " " && on === document.body))) {
      go(at);
      boxes[at].click();
    } else if (rows && /^[1-9]$/.test(event.key)) number(event.key);
    else if (rows && event.key === "0" && typed) number("0");
    else if (rows && event.key === "d") words.focus();
    else if (form && event.key === "p") before();
    else if (event.key === "g" && !document.querySelector(".head")) press("g");
    else return press(event.key);
    return true;
  }
  document.addEventListener(
    "keydown",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || help?.open || document.documentElement.dataset.keys === "off") return;
      if (key(event)) event.preventDefault();
    },
    true,
  );
})();
