// Keeps a page as its server is: asks once a second what has changed, and shows the chosen step.
"use strict";
(() => {
  const MOST_WAIT_MS = 10000;
  const root = document.documentElement;
  const body = document.body;
  const status = document.getElementById("status");
  const attributes = new Set(["width", "aria-label"]);
  root.classList.add("js");

  function say(state, text) {
    if (!status || (status.dataset.state === state && status.textContent === text)) return;
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
  const detail = (id) => (id && document.getElementById(id)?.matches(".detail") ? id : null);

  // A step of that id, or the one where most time goes.
  function chooseOr(id) {
    const first = document.querySelector(".detail.first");
    if (detail(id)) choose(id);
    else if (first && !sheet.matches) choose(first.id);
    else chosen = null;
  }
  chooseOr(location.hash.slice(1));

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

  // A server that hangs must not end the looking.
  const ask = (address) => fetch(address, { cache: "no-store", signal: AbortSignal.timeout(MOST_WAIT_MS) });
  const stamp = (of) => of.querySelector("script[src]")?.getAttribute("src");
  const token = (of) => of.querySelector("meta[name=troupe-page-token]");

  // The page as it is now, since other models are there. What is written in the form, and the file that was
  // chosen, stay: models are loaded anew each time one of their files is saved.
  async function renew() {
    const answer = await ask(location.href);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    // What a proxy between says must not take the place of what is written.
    if (!stamp(fresh)) throw new Error(`the server answers ${answer.status} ${answer.statusText}`);
    // Another troupe has another script.
    if (stamp(fresh) !== stamp(document)) return location.reload();
    const main = document.querySelector("main"), next = document.adoptNode(fresh.querySelector("main"));
    const focused = document.activeElement?.id, was = chosen;
    const old = document.getElementById("try"), form = next.querySelector("#try");
    const stays = workbench.renewed(form);
    if (old && old === stays) {
      // It is not moved: that would take the focus away.
      const all = [...next.childNodes], at = all.indexOf(form);
      for (const it of [...main.childNodes]) if (it !== stays) it.remove();
      stays.before(...all.slice(0, at));
      stays.after(...all.slice(at + 1));
    } else {
      if (form !== stays) form.replaceWith(stays);
      main.replaceChildren(...next.childNodes);
    }
    for (const key of ["changes", "structure"]) body.dataset[key] = fresh.body.dataset[key];
    token(document).content = token(fresh).content;
    document.title = fresh.title;
    chooseOr(was);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    filter();
  }

  // Models whose names hold what is written above the table.
  let wanted = "";
  function filter() {
    const input = document.getElementById("filter");
    if (!input) return;
    if (input.value !== wanted) input.value = wanted;
    const all = [...document.querySelectorAll("[data-model]")];
    for (const it of all) it.hidden = !it.dataset.model.toLowerCase().includes(wanted.trim().toLowerCase());
    const rows = all.filter((it) => it.matches("tr"));
    const left = rows.filter((it) => !it.hidden).length;
    document.getElementById("filtered").textContent = wanted.trim() ? `${left} of ${rows.length}` : "";
  }
  document.addEventListener("input", (event) => {
    if (event.target.id !== "filter") return;
    wanted = event.target.value;
    filter();
  });

  async function look() {
    if (!document.hidden) {
      try {
        const answer = await ask(body.dataset.changes);
        if (!answer.headers.get("content-type")?.includes("json")) throw new Error(await answer.text());
        const news = await answer.json();
        if (news.structure !== body.dataset.structure) await renew();
        else news.changes.forEach(change);
        if (news.error) say("lost", news.error);
        else say("live", "live");
      } catch (error) {
        const isAway = error instanceof TypeError || error.name === "TimeoutError";
        say("lost", isAway ? "the server does not answer" : error.message);
      }
    }
    setTimeout(look, 1000);
  }
  if (body.dataset.changes) look();
})();
