// Keeps a page as its server is: asks once a second what has changed, and shows the chosen step.
"use strict";
(() => {
  const root = document.documentElement;
  const body = document.body;
  const status = document.getElementById("status");
  const attributes = new Set(["width", "aria-label"]);
  root.classList.add("js");

  function say(state, text) {
    if (!status || status.dataset.state === state) return;
    status.dataset.state = state;
    status.textContent = text;
  }

  function change([id, what, value]) {
    const element = document.getElementById(id);
    if (!element) return;
    if (what === "text") {
      if (element.textContent !== value) element.textContent = value;
    } else if (what === "html") {
      // Written by the server, which escapes every name; kept while it is the same, with its focus.
      if (element.markup !== value) element.innerHTML = value;
      element.markup = value;
    } else if (what === "class") {
      if (element.served !== value) element.setAttribute("class", value);
      if (element.served !== value) mark();
      element.served = value;
    } else if (attributes.has(what) && element.getAttribute(what) !== value) {
      element.setAttribute(what, value);
    }
  }

  let chosen = null;
  const aim = (node) => node.getAttribute("href").slice(1);

  // The server's classes know nothing of what is chosen here.
  function mark() {
    for (const node of document.querySelectorAll("a.step")) {
      const is = chosen !== null && aim(node) === chosen;
      node.classList.toggle("chosen", is);
      if (is) node.setAttribute("aria-current", "true");
      else node.removeAttribute("aria-current");
    }
  }

  function choose(id) {
    chosen = id;
    for (const it of document.querySelectorAll(".detail")) it.classList.toggle("chosen", it.id === id);
    mark();
  }

  const sheet = window.matchMedia("(max-width: 860px)");
  const first = document.querySelector(".detail.first");
  const named = location.hash && document.getElementById(location.hash.slice(1));
  if (named && named.classList.contains("detail")) choose(named.id);
  else if (first && !sheet.matches) choose(first.id);

  function leave() {
    const all = [...document.querySelectorAll("a.step.chosen")];
    const node = all.find((it) => it.getClientRects().length);
    choose(null);
    history.replaceState(null, "", location.pathname + location.search);
    if (node) node.focus();
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest(".detail .close")) return leave();
    const node = event.target.closest("a.step");
    if (!node) return;
    event.preventDefault();
    choose(aim(node));
    history.replaceState(null, "", "#" + chosen);
    if (sheet.matches) document.getElementById(chosen).focus({ preventScroll: true });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && sheet.matches && chosen) leave();
  });

  async function look() {
    if (!document.hidden) {
      try {
        const answer = await fetch(body.dataset.changes, { cache: "no-store" });
        if (!answer.ok) throw new Error(await answer.text());
        const news = await answer.json();
        if (news.structure !== body.dataset.structure) return location.reload();
        news.changes.forEach(change);
        say("live", "live");
      } catch (error) {
        say("lost", error instanceof TypeError ? "the server does not answer" : error.message);
      }
    }
    setTimeout(look, 1000);
  }
  if (body.dataset.changes) look();
})();
