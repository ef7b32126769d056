// Keys for reading; every page works without them. A link with data-key is followed by that key; `?` shows the keys.
"use strict";

(() => {
  const home = new URL("../../", document.currentScript.src).pathname; // a proxy may put the pages under a path
  const help = document.getElementById("keys");
  const root = document.documentElement;
  try { root.dataset.keys = localStorage.getItem("keys") ?? "on"; } catch { /* a browser that stores nothing: on */ }
  const writing = (at) => at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName);

  const follow = (key) => {
    const at = [...document.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
    if (!at) return false;
    if (at.tagName === "INPUT") {
      at.focus();
      at.select();
    } else at.click();
    return true;
  };

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (writing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (help?.open || root.dataset.keys === "off") return;
    if (event.key === "?" && help) help.showModal();
    else if (event.key === "g") location.assign(home);
    else if (!follow(event.key)) return;
    event.preventDefault();
  });

  // What takes the model longer comes in steps: a link with data-load names the next, whose page has this part.
  let leaving = new AbortController();
  const load = async (id, tries = 30) => {
    const link = document.querySelector(`#${id} [data-load]`);
    if (!link) return;
    const address = new URL(link.href);
    address.searchParams.set("until", link.dataset.load);
    const answer = await fetch(address, { signal: leaving.signal });
    // Work for a page that is being loaded goes first.
    if (answer.status === 503 && tries) setTimeout(() => load(id, tries - 1).catch(() => {}), 1000);
    if (!answer.ok) return;
    const part = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(id);
    const old = document.getElementById(id);
    part.querySelector("details").open = old.querySelector("details").open;
    old.replaceWith(part);
    await load(id, tries);
  };
  addEventListener("beforeunload", () => leaving.abort());
  addEventListener("pageshow", () => {
    leaving = new AbortController();
    for (const one of document.querySelectorAll("[data-load]")) load(one.closest("[id]").id).catch(() => {});
  });

  if (help) {
    for (const one of document.querySelectorAll(".keys")) one.hidden = false;
    const used = help.querySelector("[data-keys]");
    used.checked = root.dataset.keys !== "off";
    used.addEventListener("change", () => {
      root.dataset.keys = used.checked ? "on" : "off";
      try { localStorage.setItem("keys", root.dataset.keys); } catch { /* for this page only */ }
    });
    for (const one of document.querySelectorAll("[data-help]")) one.addEventListener("click", () => help.showModal());
  }
})();
