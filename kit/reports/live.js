// The server says that the page has changed; the page is then read again, and what differs in it takes the old one's place.
const says = (text) => { const line = part("live"); if (line && line.textContent !== text) line.textContent = text; };
const sources = (root) => new Map([...root.querySelectorAll("main > section")].map((one) => [one.id, one.innerHTML]));
let shown = new Map(), busy = false, again = false;
async function refresh() {
  if (busy) { again = true; return; }
  busy = true;
  try {
    do {
      again = false;
      const answer = await fetch(location.pathname + location.search, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      show(new DOMParser().parseFromString(await answer.text(), "text/html"));
      await draw();
    } while (again);
    says(`live, as of ${new Date().toLocaleTimeString()}`);
  } catch (error) { says("the server does not answer"); }
  busy = false;
}
function show(next) {
  const newSpecs = readSpecs(next), place = document.activeElement?.id, kept = new Map();
  const opened = new Set([...document.querySelectorAll("details[open]")].map((one) => one.id || one.textContent.slice(0, 80)));
  const text = part("filter")?.value, ticked = new Set([...document.querySelectorAll("input:checked")].map((one) => one.value));
  for (const one of document.querySelectorAll("[data-chart]"))
    if (JSON.stringify(specs[one.dataset.chart]) === JSON.stringify(newSpecs[one.dataset.chart])) kept.set(one.dataset.chart, one);
  const found = sources(next), main = document.querySelector("main");
  const fresh = document.importNode(next.querySelector("main"), true);
  const same = [...fresh.children].map((one) => one.id).join() === [...main.children].map((one) => one.id).join();
  for (const one of fresh.querySelectorAll("[data-chart]")) if (kept.has(one.dataset.chart)) one.replaceWith(kept.get(one.dataset.chart));
  if (!same) main.replaceChildren(...fresh.childNodes);
  else for (const section of [...fresh.children])
    if (found.get(section.id) !== shown.get(section.id) || section.querySelector("[data-chart]")) part(section.id).replaceWith(section);
  const from = next.querySelector(".live"), to = document.querySelector(".live");
  for (const old of to.querySelectorAll("button")) old.remove();
  for (const button of from.querySelectorAll("button")) to.append(document.importNode(button, true));
  specs = newSpecs;
  shown = found;
  for (const one of document.querySelectorAll("details")) if (opened.has(one.id || one.textContent.slice(0, 80))) one.open = true;
  for (const one of document.querySelectorAll("input[type=checkbox]")) one.checked = ticked.has(one.value);
  if (part("filter") && text) { part("filter").value = text; sift(); }
  ages();
  if (place) part(place)?.focus({ preventScroll: true });
}
// The age of a run is the reader's clock's. The date is its title.
function ages() {
  for (const one of document.querySelectorAll("time[data-at]")) {
    const old = Math.max(0, Date.now() / 1000 - one.dataset.at);
    const [size, name] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => old >= size) ?? [1, "s"];
    one.textContent = `${Math.floor(old / size)} ${name} ago`;
  }
}
ages();
setInterval(ages, 30_000);
const events = new EventSource(`${live.base}events?page=${encodeURIComponent(live.page)}&made=${live.made}`);
events.onopen = () => says("live");
events.onerror = () => says("the server does not answer");
events.addEventListener("changed", refresh);
addEventListener("click", async (event) => {
  const action = event.target.dataset?.action;
  if (!action || !confirm(`${action} ${document.title}?`)) return;
  event.target.disabled = true;
  const [kind, id] = live.page.split("/");
  const answer = await fetch(`${live.base}${kind}s/${id}/${action}`, { method: "POST", headers: { "X-Kit": "control" } }).catch(() => undefined);
  says(answer ? await answer.text() : "the server does not answer");
  event.target.disabled = false;
});
