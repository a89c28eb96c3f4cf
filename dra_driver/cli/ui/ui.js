// Keeps a page of `dractl ui` current: the server sends the elements that changed, as `changes` in parts.py describes.
"use strict";

const live = document.getElementById("live");
let source = null;
let typed = 0;

function tell(text, lost) {
  if (live.textContent !== text) live.textContent = text;
  live.classList.toggle("lost", lost);
}

function elementOf(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content.firstElementChild;
}

// Where the focus is, so that it is the same after its element was replaced.
function focused() {
  const at = document.activeElement;
  const part = at && at.closest("#view [id]");
  if (!part) return () => {};
  const href = at.getAttribute("href");
  return () => {
    if (document.contains(at)) return at.focus({ preventScroll: true });
    const again = document.getElementById(part.id);
    if (!again) return undefined;
    const same = [again, ...again.querySelectorAll("[href], [tabindex]")];
    const target = same.find((item) => (href ? item.getAttribute("href") === href : item.hasAttribute("tabindex")));
    return target && target.focus({ preventScroll: true });
  };
}

function arrange(list, order, fresh) {
  let at = list.firstElementChild;
  for (const id of order) {
    const item = fresh.get(id) || document.getElementById(id);
    if (!item) continue;
    if (item === at) at = at.nextElementSibling;
    else list.insertBefore(item, at);
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}

function apply(change) {
  const shown = [...document.getElementById("view").children].map((item) => item.id);
  if (shown.join() !== change.parts.join()) return location.reload();
  const again = focused();
  const fresh = new Map();
  for (const [id, html] of Object.entries(change.set)) {
    const item = elementOf(html);
    const before = document.getElementById(id);
    if (before) {
      if (item.localName === "li") item.classList.add("fresh");
      before.replaceWith(item);
    } else {
      fresh.set(id, item);
    }
  }
  for (const [id, order] of Object.entries(change.rows)) {
    const list = document.getElementById(id);
    if (list) arrange(list, order, fresh);
  }
  document.title = change.title;
  return again();
}

function follow() {
  if (source) source.close();
  if (document.hidden) return; // a browser has few connections to one server, and each page that is followed takes one
  const address = new URL(location.href);
  address.hash = "";
  address.searchParams.set("since", document.getElementById("view").dataset.state);
  source = new EventSource(address);
  source.onopen = () => tell("live", false);
  source.onmessage = (message) => {
    apply(JSON.parse(message.data));
    document.getElementById("view").dataset.state = message.lastEventId;
  };
  source.onerror = () => {
    const over = source.readyState === EventSource.CLOSED;
    tell(over ? "not live: reload the page" : "not live: connecting again…", true);
  };
}

async function filter(form) {
  const mine = (typed += 1);
  const address = new URL(location.href);
  address.hash = "";
  address.search = new URLSearchParams([...new FormData(form)].filter(([, value]) => value)).toString();
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  if (!answer.ok || mine !== typed) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.getElementById("view").replaceWith(page.getElementById("view"));
  history.replaceState(null, "", address);
  follow();
}

const form = document.getElementById("filter");
if (form) {
  let timer = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => filter(form).catch(() => form.submit()), 200);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    filter(form).catch(() => form.submit());
  });
}
document.documentElement.classList.add("scripted");
window.addEventListener("pageshow", follow);
window.addEventListener("pagehide", () => source && source.close());
document.addEventListener("visibilitychange", follow);
