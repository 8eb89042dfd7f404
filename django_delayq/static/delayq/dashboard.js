// Keeps the dashboard's figures up to date in place, while somebody looks at it.
"use strict";

(() => {
  const EVERY_MS = 5000;
  const figures = document.getElementById("delayq-figures");
  if (!figures) return;
  const follow = document.getElementById("delayq-follow");
  const stale = document.getElementById("delayq-stale");
  const said = document.getElementById("delayq-said");
  let timer = 0;

  // What has an id keeps the focus, stays unfolded, and where it was scrolled to.
  function replace(old, fresh) {
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    for (const open of old.querySelectorAll("details[open][id]")) {
      fresh.querySelector("#" + CSS.escape(open.id))?.setAttribute("open", "");
    }
    const scrolled = Array.from(old.querySelectorAll("[id]"), (part) => [part.id, part.scrollLeft]).filter(([, left]) => left);
    old.replaceWith(fresh);
    for (const [id, left] of scrolled) document.getElementById(id)?.scrollTo({ left, behavior: "instant" });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  function show(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html").body;
    const ids = (parent) => Array.from(parent.children, (part) => part.id).join();
    const parts = Array.from(fresh.children);
    if (ids(fresh) !== ids(figures)) figures.replaceChildren(...parts);
    else parts.forEach((part) => {
      const old = document.getElementById(part.id);
      if (!old.isEqualNode(part)) replace(old, part);
    });
    const summary = document.getElementById("delayq-summary").textContent;
    if (said.textContent !== summary) said.textContent = summary;
  }

  async function update() {
    clearTimeout(timer);
    if (document.hidden || !follow.checked) return;
    try {
      const response = await fetch(figures.dataset.address, { redirect: "error", signal: AbortSignal.timeout(10000) });
      if (!response.ok) throw new Error(response.statusText);
      show(await response.text());
      stale.hidden = true;
    } catch {
      stale.hidden = false;
    }
    timer = setTimeout(update, EVERY_MS);
  }

  document.querySelector("[data-delayq-controls]").hidden = false;
  document.addEventListener("visibilitychange", update);
  follow.addEventListener("change", update);
  timer = setTimeout(update, EVERY_MS);
})();
