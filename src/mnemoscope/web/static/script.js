// Keys for reading; every page works without them. A link with data-key is followed by that key; `?` shows the keys.
"use strict";

(() => {
  const home = new URL("../../", document.currentScript.src).pathname; // a proxy may put the pages under a path
  const help = document.getElementById("keys");
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
    if (help?.open) return;
    if (event.key === "?" && help) help.showModal();
    else if (event.key === "g") location.assign(home);
    else if (!follow(event.key)) return;
    event.preventDefault();
  });

  if (help) {
    for (const one of document.querySelectorAll(".keys")) one.hidden = false;
    for (const one of document.querySelectorAll("[data-help]")) one.addEventListener("click", () => help.showModal());
  }
})();
