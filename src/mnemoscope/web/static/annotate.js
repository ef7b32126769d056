// Judging, saved as one goes. The pages work without it, by their buttons; keys are in annotate_keys.js.
//
// What is typed is kept in this browser at once (localStorage) and sent when it is complete: marks, words and a class.
// Every judgement goes out under a key of its own and is sent again under the same key until an answer came, also after
// the browser was closed; the server stores it once.
"use strict";

(() => {
  const home = new URL("../..", document.currentScript.src).pathname.replace(/\/$/, ""); // a proxy's path, or nothing
  const WAIT = 600; // ms of quiet before a change is sent
  const LONGEST = 15000; // ms between two tries at most
  const form = document.getElementById("pattern");
  const verdict = document.getElementById("verdict");
  const main = document.getElementById("main");
  const state = document.querySelector("[data-state]");
  const editable = Boolean(form) && !("closed" in form.dataset);

  const say = (text, bad = false) => {
    if (!state) return;
    state.textContent = text;
    state.classList.toggle("bad", bad);
  };
  const newKey = () => [...crypto.getRandomValues(new Uint8Array(12))].map((one) => one.toString(16).padStart(2, "0")).join("");

  async function post(address, fields) {
    const token = document.querySelector("input[name=csrf]").value;
    const answer = await fetch(address, {
      method: "POST",
      headers: { Accept: "application/json", "X-CSRF-Token": token },
      body: new URLSearchParams(fields),
      keepalive: true, // a tab that is closed still sends it
    });
    const said = await answer.json().catch(() => ({ message: "the server's answer cannot be read" }));
    return { ok: answer.ok, again: answer.status >= 500, ...said };
  }

  // ---- One pattern: what the form holds, what is stored, what is on its way -------------------------------------

  const boxes = form ? [...form.querySelectorAll("input[name=marks]")] : [];
  const words = form?.querySelector("textarea");
  const radios = form ? [...form.querySelectorAll("input[name=kind]")] : [];
  const place = form ? `/annotate/items/${form.dataset.code}` : "";
  const mine = form ? `mnemoscope ${form.dataset.person} ${form.dataset.code} ` : "";
  let slot = form?.dataset.slot;
  let pending = null;
  let sending = null;
  let pause = 0;
  let timer = 0;

  const read = () => ({
    marks: boxes.filter((one) => one.checked).map((one) => Number(one.value)),
    description: words.value.trim().split(/\s+/).join(" "),
    kind: radios.find((one) => one.checked)?.value ?? "",
  });
  const write = (content) => {
    for (const one of boxes) one.checked = content.marks.includes(Number(one.value));
    for (const one of radios) one.checked = one.value === content.kind;
    words.value = content.description;
  };
  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
  const empty = (content) => !content.marks.length && !content.description;
  const lacking = (content) => [
    ...(content.marks.length < Number(form.dataset.least) ? [`mark at least ${form.dataset.least} prefixes`] : []),
    ...(content.description ? [] : ["say what they share"]),
    ...(content.kind ? [] : ["choose a class"]),
  ];
  let stored = editable ? (slot === "new" ? { marks: [], description: "", kind: "" } : read()) : null;

  const kept = (name) => {
    try {
      return JSON.parse(localStorage.getItem(mine + name));
    } catch {
      return null;
    }
  };
  const drafts = () => {
    try {
      return Object.keys(localStorage).filter((name) => name.startsWith(mine)).map((name) => name.slice(mine.length));
    } catch {
      return []; // a browser that keeps nothing
    }
  };
  const keep = () => {
    try {
      const content = read();
      if (!pending && (same(content, stored) || (slot === "new" && empty(content)))) localStorage.removeItem(mine + slot);
      else localStorage.setItem(mine + slot, JSON.stringify({ content, pending }));
    } catch {
      // A browser that keeps nothing still sends.
    }
  };
  const forget = () => {
    try {
      localStorage.removeItem(mine + slot);
    } catch {
      // Nothing was kept.
    }
  };

  const count = () => {
    for (const one of form.querySelectorAll("[data-marked]")) one.textContent = `${read().marks.length} marked`;
  };

  function settled(number) {
    if (slot !== String(number)) forget();
    slot = String(number);
    form.dataset.slot = slot;
    form.querySelector("input[name=pattern]").value = slot;
    history.replaceState(null, "", `?pattern=${slot}`);
    const chips = form.querySelector(".slots");
    let chip = chips.querySelector(`[data-slot="${slot}"]`);
    if (!chip) {
      chip = document.createElement("a");
      chip.className = "slot";
      chip.href = `?pattern=${slot}`;
      chip.dataset.slot = slot;
      chip.append(`${number + 1} `, document.createElement("span"));
      chips.insertBefore(chip, chips.querySelector('[data-slot="new"]'));
      chips.querySelector('[data-slot="new"]').textContent = "+ another pattern";
    }
    for (const one of chips.children) one.removeAttribute("aria-current");
    chip.setAttribute("aria-current", "true");
    chip.querySelector("span").textContent = stored.description;
    chip.title = stored.description;
    form.querySelector("[data-named]").textContent = `Pattern ${number + 1}`;
    form.querySelector("[data-retract]").hidden = false;
    form.querySelector("[data-undo]").disabled = false;
  }

  async function send() {
    for (;;) {
      if (!pending) {
        const content = read();
        if (same(content, stored) || lacking(content).length) return told();
        pending = { key: newKey(), pattern: slot, content };
        keep();
      }
      say("Saving…");
      const { key, pattern, content } = pending;
      const fields = [["key", key], ["pattern", pattern === "new" ? "" : pattern], ["kind", content.kind]];
      fields.push(["description", content.description], ...content.marks.map((mark) => ["marks", mark]));
      let answer;
      try {
        answer = await post(`${place}/save`, fields);
      } catch {
        answer = { ok: false, again: true, message: "the server cannot be reached" };
      }
      if (answer.ok) {
        stored = content;
        pending = null;
        pause = 0;
        settled(answer.pattern);
        keep();
        continue;
      }
      if (answer.again) {
        pause = Math.min(LONGEST, Math.max(1000, pause * 2));
        timer = setTimeout(save, pause);
        say(`Not saved: ${answer.message}. It is kept in this browser, and sent again soon.`, true);
      } else {
        pending = null;
        keep();
        say(`Not saved: ${answer.message.replace(/\.$/, "")}. It is kept in this browser.`, true);
      }
      return false;
    }
  }

  function told() {
    const content = read();
    if (same(content, stored)) say(slot === "new" ? "" : `Saved ${new Date().toLocaleTimeString()}.`);
    else say(empty(content) ? "" : `Not saved yet: ${lacking(content).join(", ")}. It is kept in this browser.`);
    return same(content, stored) || empty(content);
  }

  function save() {
    clearTimeout(timer);
    sending ??= send().finally(() => {
      sending = null;
    });
    return sending;
  }

  function changed() {
    count();
    keep();
    clearTimeout(timer);
    if (!sending) say(lacking(read()).length ? state.textContent : "Not saved yet.");
    if (!pending) timer = setTimeout(save, WAIT);
    if (!sending && lacking(read()).length) told();
  }

  async function act(what, fields = {}) {
    try {
      const answer = await post(`${place}/${what}`, { key: newKey(), ...fields });
      if (answer.ok) return answer;
      say(`Not done: ${answer.message}`, true);
    } catch {
      say("Not done: the server cannot be reached. Try again.", true);
    }
    return null;
  }

  async function pressed(event) {
    const button = event.submitter;
    const is = (name) => Boolean(button) && name in button.dataset;
    event.preventDefault();
    if (is("undo") && !pending && !sending && !same(read(), stored)) {
      forget();
      location.reload();
      return;
    }
    const clean = is("reopen") || (await save());
    if (is("undo") || is("reopen") || is("retract")) {
      const fields = is("retract") ? { pattern: slot } : {};
      if (await act(is("undo") ? "undo" : is("reopen") ? "reopen" : "retract", fields)) {
        forget();
        location.assign(location.pathname);
      }
    } else if (is("finish") || is("none")) {
      if (!clean) {
        const needs = lacking(read());
        if (needs.length) say(`Not finished: ${needs.join(", ")}; or undo what is here.`, true);
        return;
      }
      const answer = await act(is("finish") ? "finish" : "none");
      if (answer) location.assign(home + answer.next);
    }
  }

  if (editable) {
    const others = drafts();
    const draft = kept(slot);
    if (draft) {
      write(draft.content);
      pending = draft.pending;
      count();
      save();
    } else if (others.length && !location.search) location.replace(`?pattern=${others[0]}`);
    form.addEventListener("input", changed);
    addEventListener("online", () => pending && save());
    addEventListener("pagehide", () => save());
  }
  form?.addEventListener("submit", pressed);
  // A link waits for what is on its way, so that the next page shows it.
  main.addEventListener("click", async (event) => {
    const link = event.target.closest("a[href]");
    if (!editable || !link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    await Promise.race([save(), new Promise((done) => setTimeout(done, 3000))]);
    location.assign(link.href);
  });

  // ---- A composition ---------------------------------------------------------------------------------------------

  const called = verdict ? `mnemoscope ${verdict.dataset.person} ${verdict.dataset.code} verdict` : "";
  const hold = (given) => {
    try {
      if (given) localStorage.setItem(called, JSON.stringify(given));
      else localStorage.removeItem(called);
    } catch {
      // A browser that keeps nothing still sends.
    }
  };

  async function call(given) {
    hold(given);
    for (let wait = 1000; ; wait = Math.min(LONGEST, wait * 2)) {
      say("Saving…");
      try {
        const answer = await post(verdict.action, given);
        if (answer.ok || !answer.again) hold(null);
        if (answer.ok) return answer.next ? location.assign(home + answer.next) : location.reload();
        say(`Not saved: ${answer.message}`, true);
        if (!answer.again) return undefined;
      } catch {
        say("Not saved: the server cannot be reached. It is kept in this browser, and sent again soon.", true);
      }
      await new Promise((done) => setTimeout(done, wait));
    }
  }

  if (verdict) {
    verdict.addEventListener("submit", (event) => {
      event.preventDefault();
      call({ verdict: event.submitter.value, key: newKey() });
    });
    try {
      const given = JSON.parse(localStorage.getItem(called));
      if (given) call(given);
    } catch {
      // Nothing was kept.
    }
  }
})();
