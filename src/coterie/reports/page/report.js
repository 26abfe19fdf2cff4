// The page: legend, axes, tables that sort, videos and buttons that copy.

const data = JSON.parse(document.getElementById("data").textContent);
const charts = [...document.querySelectorAll("figure[data-chart]")].map(
  (figure) => new Chart(figure, data.charts[figure.dataset.chart]),
);
const redraw = () => charts.forEach((chart) => { chart.zoom = chart.zoom && { ...chart.zoom }; chart.draw(); });

for (const button of document.querySelectorAll("[data-group].chip"))
  button.addEventListener("click", () => {
    const { group } = button.dataset;
    if (!state.hidden.delete(group)) state.hidden.add(group);
    for (const same of document.querySelectorAll("[data-group].chip"))
      if (same.dataset.group === group) same.setAttribute("aria-pressed", String(!state.hidden.has(group)));
    redraw();
  });

for (const choice of document.querySelectorAll("input[name=axis]"))
  choice.addEventListener("change", () => {
    state.axis = choice.value;
    for (const chart of charts) if (chart.spec.axes.includes(choice.value)) chart.zoom = null;
    for (const chart of charts) chart.cursor = null;
    redraw();
  });

for (const choice of document.querySelectorAll("input[name=seeds]"))
  choice.addEventListener("change", () => { state.seeds = choice.checked; redraw(); });

// ----------------------------------------------------------------------------------------------------------- tables

function compare(a, b) {
  const [x, y] = [a, b].map((cell) => (cell.dataset.value === undefined ? NaN : Number(cell.dataset.value)));
  if (!Number.isNaN(x) || !Number.isNaN(y)) return Number.isNaN(x) ? 1 : Number.isNaN(y) ? -1 : x - y;
  return a.textContent.localeCompare(b.textContent, "en", { numeric: true });
}

for (const table of document.querySelectorAll("table.sortable"))
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    if (heading.querySelector(".ends")) continue;
    const button = html("button", "sort", ...heading.childNodes);
    button.type = "button";
    heading.append(button);
    button.addEventListener("click", () => {
      const falling = heading.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((a, b) => compare(a.cells[column], b.cells[column]));
      table.tBodies[0].append(...(falling ? rows.reverse() : rows));
    });
  }

// ----------------------------------------------------------------------------------------------------------- videos

for (const video of document.querySelectorAll("video[data-video]")) {
  const bytes = Uint8Array.from(atob(data.videos[video.dataset.video]), (letter) => letter.charCodeAt(0));
  // Some browsers play no data: addresses, and show no picture before the start without a time.
  video.src = `${URL.createObjectURL(new Blob([bytes], { type: "video/mp4" }))}#t=0.001`;
}

// ---------------------------------------------------------------------------------------------------------- copying

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = button.parentElement.querySelector("pre");
    let text = "Copied";
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      getSelection().selectAllChildren(source);
      text = "Press Ctrl+C";
    }
    button.textContent = text;
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// Folded parts are printed, too.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.printed:not([open])")];
  for (const part of opened) part.open = true;
});
addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
document.documentElement.dataset.ready = "true";
