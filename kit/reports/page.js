const part = (id) => document.getElementById(id);
const readSpecs = (from) => JSON.parse(from.getElementById("specs")?.textContent ?? "{}");
let specs = readSpecs(document);
const dark = matchMedia("(prefers-color-scheme: dark)");
// A point of parallel coordinates leads to its row's text below.
const follow = (event, item) => { if (item?.datum?.id) location.hash = item.datum.id; };
async function draw(again) {
  const root = document.documentElement, style = getComputedStyle(root), colour = (name) => style.getPropertyValue(name).trim();
  const text = colour("--text"), line = colour("--line");
  root.dataset.theme = dark.matches ? "dark" : "light";
  const config = { background: null, font: "system-ui, sans-serif", view: { stroke: null },
    axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line }, legend: { labelColor: text, titleColor: text } };
  for (const place of document.querySelectorAll("[data-chart]")) {
    if (place.vega && !again) continue;
    place.vega?.finalize();
    place.vega = await vegaEmbed(place, specs[place.dataset.chart], { config, mode: "vega-lite", ast: false, theme: dark.matches ? "dark" : undefined,
      actions: { export: true, source: false, compiled: false, editor: false }, downloadFileName: place.dataset.chart });
    place.vega.view.addEventListener("click", follow);
  }
  root.dataset.drawn = "all";
}
draw();
dark.addEventListener("change", () => draw(true));
function sift() {
  const wanted = part("filter")?.value.toLowerCase();
  if (wanted === undefined) return;
  for (const row of document.querySelectorAll("#rows tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
}
addEventListener("input", (event) => { if (event.target.id === "filter") sift(); });
// A link to a point opens it.
const open = () => { const found = location.hash && part(decodeURIComponent(location.hash.slice(1))); if (found?.tagName === "DETAILS") { found.open = true; found.scrollIntoView(); } };
addEventListener("hashchange", open);
open();
// Paper has nothing to click on.
let shut = [];
addEventListener("beforeprint", () => { shut = [...document.querySelectorAll("details:not([open])")]; shut.forEach((one) => { one.open = true; }); });
addEventListener("afterprint", () => { shut.forEach((one) => { one.open = false; }); });
