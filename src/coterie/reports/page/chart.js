// Line charts: hover shows values, drag zooms, double-click resets. Colors and text styles are in report.css.

const SVG = "http://www.w3.org/2000/svg";
const state = { axis: "steps", hidden: new Set(), seeds: false };
let count = 0;

function node(name, attributes, ...content) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

function html(name, className, ...content) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

// ---------------------------------------------------------------------------------------------------------- numbers

const significant = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

function formatValue(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const text = Math.abs(value) >= 1e4 ? whole.format(value) : significant.format(value);
  return text.replace("-", "−");
}

/** True if a range is wide enough, relative to its values, for numbers to differ within it. */
function isResolved(low, high) {
  return high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high), 1e-290);
}

/** Ticks at multiples of 1, 2 or 5 times a power of ten; without a resolved range, its lower end. */
function ticks(low, high, wanted) {
  if (!isResolved(low, high)) return { places: [low], step: Math.abs(low) || 1 };
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return { places: found, step };
}

/** A tick's label. All ticks of an axis have the unit of the largest one. */
function formatTick(value, { places, step }) {
  const size = Math.max(...places.map(Math.abs));
  const [unit, suffix] = size >= 1e6 && step >= 1e4 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const text = (value / unit).toLocaleString("en-US", { maximumFractionDigits: Math.min(digits, 12) });
  return text === "0" || text === "-0" ? "0" : text.replace("-", "−") + suffix;
}

/** Unit of an axis and its label. Only times have other units than the data. */
function unitOf(axis, largest) {
  if (axis !== "seconds") return { size: 1, label: { steps: "environment steps", score: "normalized score" }[axis] };
  for (const [size, name] of [[3600, "hours"], [60, "minutes"]])
    if (largest >= 2 * size) return { size, label: `wall time (${name})` };
  return { size: 1, label: "wall time (seconds)" };
}

/** Linear interpolation at x; null outside of the data. */
function interpolate(xs, ys, x) {
  const last = xs.length - 1;
  if (!ys || last < 0 || x < xs[0] || x > xs[last]) return null;
  let low = 0, high = last;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle; else high = middle;
  }
  if (ys[low] === null || ys[high] === null) return null;
  if (xs[high] === xs[low]) return ys[high];
  return ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / (xs[high] - xs[low]);
}

// ------------------------------------------------------------------------------------------------------------ chart

class Chart {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.zoom = null;
    this.cursor = null;
    this.drag = null;
    this.clip = `clip${count++}`;
    this.plot = figure.querySelector(".plot");
    this.svg = node("svg", { class: "chart", tabindex: "0", role: "group", "aria-roledescription": "chart" });
    this.svg.setAttribute("aria-label", `${spec.label}. Arrow keys move the cursor, plus and minus zoom, Escape resets.`);
    this.tip = html("div", "tip");
    this.spoken = html("output", "hidden");
    this.reset = html("button", "reset", "Reset zoom");
    this.reset.type = "button";
    this.reset.hidden = true;
    this.reset.addEventListener("click", () => this.setZoom(null));
    this.plot.append(this.svg, this.tip, this.reset, this.spoken);
    this.listen();
    this.draw();
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  get axis() { return this.spec.axes.includes(state.axis) ? state.axis : this.spec.axes[0]; }

  /** Visible series that have data on this axis. */
  get series() {
    return this.spec.series.filter((one) => one[this.axis] && !state.hidden.has(one.group));
  }

  extent() {
    let [x0, x1] = [Infinity, -Infinity];
    for (const { [this.axis]: { x } } of this.series) [x0, x1] = [Math.min(x0, x[0]), Math.max(x1, x[x.length - 1])];
    if (!(x1 >= x0)) [x0, x1] = [0, 1];
    if (this.axis !== "score") x0 = Math.min(x0, 0);
    if (x1 === x0) x1 = x0 + 1;
    return this.zoom ? [this.zoom.x0, this.zoom.x1] : [x0, x1];
  }

  /** Range of the values between two places, with some space. */
  range(x0, x1) {
    if (this.zoom && this.zoom.y0 !== null) return [this.zoom.y0, this.zoom.y1];
    if (this.axis === "score") return [0, 1];
    let [y0, y1] = [Infinity, -Infinity];
    const include = (x, y) => {
      for (const [i, value] of y.entries())
        if (value !== null && x[i] >= x0 && x[i] <= x1) [y0, y1] = [Math.min(y0, value), Math.max(y1, value)];
      for (const edge of [x0, x1]) {
        const value = interpolate(x, y, edge);
        if (value !== null) [y0, y1] = [Math.min(y0, value), Math.max(y1, value)];
      }
    };
    for (const one of this.series) {
      const curve = one[this.axis];
      for (const y of [curve.y, curve.low, curve.high]) if (y) include(curve.x, y);
      if (state.seeds) for (const seed of one.seeds || []) if (seed[this.axis]) include(seed[this.axis], seed.y);
    }
    if (!this.zoom) for (const level of this.spec.levels) [y0, y1] = [Math.min(y0, level.value), Math.max(y1, level.value)];
    if (!(y1 >= y0)) [y0, y1] = [0, 1];
    const space = (isResolved(y0, y1) ? y1 - y0 : Math.abs(y1)) * 0.05 || 1;
    return [y0 - space, y1 + space];
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const height = Math.round(Math.min(340, Math.max(220, width * 0.56)));
    const [x0, x1] = this.extent();
    const [y0, y1] = this.range(x0, x1);
    const unit = unitOf(this.axis, x1);
    const yTicks = ticks(y0, y1, height / 52);
    const labels = yTicks.places.map((value) => formatTick(value, yTicks));
    const left = 14 + 7 * Math.max(...labels.map((text) => text.length), 1);
    const box = { left, right: width - 14, top: 28, bottom: height - 42 };
    this.box = box;
    this.x = (value) => box.left + ((value - x0) / (x1 - x0)) * (box.right - box.left);
    this.y = (value) => box.bottom - ((value - y0) / (y1 - y0)) * (box.bottom - box.top);
    this.backX = (pixel) => x0 + ((pixel - box.left) / (box.right - box.left)) * (x1 - x0);
    this.backY = (pixel) => y0 + ((box.bottom - pixel) / (box.bottom - box.top)) * (y1 - y0);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const clip = node("clipPath", { id: this.clip }, node("rect", {
      x: box.left, y: box.top - 2, width: box.right - box.left, height: box.bottom - box.top + 4,
    }));
    const area = node("g", { "clip-path": `url(#${this.clip})` }, ...this.levels(), ...this.lines());
    this.marks = node("g", { class: "marks" });
    this.svg.replaceChildren(clip, this.grid(yTicks, labels, unit, [x0, x1]), area, this.marks);
    if (!this.series.length) {
      const why = this.spec.series.some((one) => one[this.axis]) ? "All algorithms are hidden." : "No common data on this axis.";
      this.marks.append(node("text", { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" }, why));
    }
    this.reset.hidden = !this.zoom;
    this.svg.dataset.zoomed = this.zoom ? "true" : "false";
    if (this.cursor !== null) this.point(this.cursor);
  }

  grid(yTicks, labels, unit, [x0, x1]) {
    const { left, right, top, bottom } = this.box;
    const group = node("g", { class: "grid", "aria-hidden": "true" });
    for (const [i, value] of yTicks.places.entries()) {
      const y = this.y(value);
      group.append(node("line", { x1: left, x2: right, y1: y, y2: y }));
      group.append(node("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, labels[i]));
    }
    const xTicks = ticks(x0 / unit.size, x1 / unit.size, (right - left) / 74);
    for (const value of xTicks.places) {
      const x = this.x(value * unit.size);
      group.append(node("line", { class: "tick", x1: x, x2: x, y1: bottom, y2: bottom + 5 }));
      const anchor = x > right - 12 ? "end" : "middle";
      group.append(node("text", { x: anchor === "end" ? right + 4 : x, y: bottom + 19, "text-anchor": anchor }, formatTick(value, xTicks)));
    }
    group.append(node("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }));
    group.append(node("text", { class: "title", x: right, y: bottom + 37, "text-anchor": "end" }, unit.label));
    group.append(node("text", { class: "title", x: 2, y: 14 }, this.spec.y));
    return group;
  }

  levels() {
    const shown = this.spec.levels.filter(({ value }) => this.y(value) >= this.box.top - 1 && this.y(value) <= this.box.bottom + 1);
    return shown.flatMap(({ value, label, kind }) => {
      const y = this.y(value);
      const above = y - 5 > this.box.top + 8;
      return [
        node("line", { class: `level ${kind}`, x1: this.box.left, x2: this.box.right, y1: y, y2: y }),
        node("text", { class: "level", x: this.box.right - 4, y: above ? y - 5 : y + 13, "text-anchor": "end" }, label),
      ];
    });
  }

  path(x, y) {
    let text = "", pen = "M";
    for (const [i, value] of y.entries()) {
      if (value === null) { pen = "M"; continue; }
      text += `${pen}${this.x(x[i]).toFixed(1)} ${this.y(value).toFixed(1)}`;
      pen = "L";
    }
    return text;
  }

  lines() {
    const bands = [], seeds = [], means = [];
    for (const one of this.series) {
      const { x, y, low, high } = one[this.axis];
      const style = `g${one.color} d${one.dash}`;
      if (low && low.every((value) => value !== null)) {
        const back = this.path([...x].reverse(), [...high].reverse()).replace("M", "L");
        bands.push(node("path", { class: `band ${style}`, d: `${this.path(x, low)}${back}Z` }));
      }
      if (state.seeds) for (const seed of one.seeds || [])
        if (seed[this.axis]) seeds.push(node("path", { class: `seed ${style}`, d: this.path(seed[this.axis], seed.y) }));
      if (x.length === 1) means.push(node("circle", { class: `dot ${style}`, cx: this.x(x[0]), cy: this.y(y[0]), r: 4 }));
      const line = node("path", { class: `mean ${style}`, d: this.path(x, y) });
      line.dataset.group = one.group;
      means.push(line);
    }
    return [...bands, ...seeds, ...means];
  }

  // ------------------------------------------------------------------------------------------------------- pointer

  listen() {
    const position = (event) => {
      const frame = this.svg.getBoundingClientRect();
      const scale = this.svg.viewBox.baseVal.width / frame.width;
      return [(event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale];
    };
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      this.drag = position(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      const [x, y] = position(event);
      if (this.drag) this.stretch(x, y);
      else this.point(this.backX(x));
    });
    this.svg.addEventListener("pointerup", (event) => {
      const [x, y] = position(event);
      const start = this.drag;
      this.drag = null;
      if (start && Math.abs(x - start[0]) > 8) this.select(start, [x, y]);
      else this.point(this.backX(x));
    });
    this.svg.addEventListener("pointercancel", () => { this.drag = null; this.point(null); });
    this.svg.addEventListener("pointerleave", () => { if (!this.drag) this.point(null); });
    this.svg.addEventListener("dblclick", () => this.setZoom(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  /** Corners of a selection within the plot. A flat one selects the whole height. */
  corners([ax, ay], [bx, by]) {
    const { left, right, top, bottom } = this.box;
    const within = (value, low, high) => Math.min(high, Math.max(low, value));
    const flat = Math.abs(by - ay) < 24;
    return {
      x0: within(Math.min(ax, bx), left, right), x1: within(Math.max(ax, bx), left, right),
      y0: flat ? top : within(Math.min(ay, by), top, bottom), y1: flat ? bottom : within(Math.max(ay, by), top, bottom), flat,
    };
  }

  stretch(x, y) {
    const { x0, x1, y0, y1 } = this.corners(this.drag, [x, y]);
    this.tip.classList.remove("shown");
    this.marks.replaceChildren(node("rect", { class: "selection", x: x0, y: y0, width: x1 - x0, height: y1 - y0 }));
  }

  select(start, end) {
    const { x0, x1, y0, y1, flat } = this.corners(start, end);
    if (x1 - x0 < 4) return this.point(null);
    this.setZoom({
      x0: this.backX(x0), x1: this.backX(x1), y0: flat ? null : this.backY(y1), y1: flat ? null : this.backY(y0),
    });
  }

  /** Zooms, except into ranges whose places are equal numbers. */
  setZoom(zoom) {
    if (zoom && !(isResolved(zoom.x0, zoom.x1) && (zoom.y0 === null || isResolved(zoom.y0, zoom.y1)))) return this.draw();
    this.zoom = zoom;
    this.cursor = null;
    this.tip.classList.remove("shown");
    this.draw();
  }

  /** Places of the data that are visible, for the keyboard. */
  places() {
    const [x0, x1] = this.extent();
    const all = new Set(this.series.flatMap((one) => one[this.axis].x));
    return [...all].filter((x) => x >= x0 && x <= x1).sort((a, b) => a - b);
  }

  key(event) {
    const places = this.places();
    if (!places.length) return;
    const at = this.cursor === null ? -1 : places.findIndex((x) => x >= this.cursor - 1e-9);
    const next = { ArrowRight: at + 1, ArrowLeft: at < 0 ? places.length - 1 : at - 1, Home: 0, End: places.length - 1 }[event.key];
    if (next !== undefined) {
      this.point(places[Math.min(places.length - 1, Math.max(0, next))]);
      this.spoken.textContent = this.tip.innerText;
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      const [x0, x1] = this.extent();
      const center = this.cursor ?? (x0 + x1) / 2, factor = event.key === "-" ? 2 : 0.5;
      const before = this.zoom;
      this.zoom = null;
      const [least, most] = this.extent();
      this.zoom = before;
      const low = Math.max(least, center - (center - x0) * factor), high = Math.min(most, center + (x1 - center) * factor);
      const cursor = this.cursor;
      this.setZoom(low <= least && high >= most ? null : { x0: low, x1: high, y0: null, y1: null });
      this.point(cursor);
    } else if (event.key === "Escape") this.setZoom(null);
    else return;
    event.preventDefault();
  }

  /** Shows the values at x; null hides them. */
  point(x) {
    const [x0, x1] = this.extent();
    const shown = x === null ? [] : this.series.map((one) => {
      const curve = one[this.axis];
      const at = (key) => interpolate(curve.x, curve[key], x);
      return { one, value: at("y"), low: at("low"), high: at("high") };
    }).filter(({ value }) => value !== null);
    this.cursor = shown.length && x >= x0 && x <= x1 ? x : null;
    this.tip.classList.toggle("shown", this.cursor !== null);
    this.marks.replaceChildren();
    if (this.cursor === null) return;
    const place = this.x(x);
    this.marks.append(node("line", { class: "cursor", x1: place, x2: place, y1: this.box.top, y2: this.box.bottom }));
    for (const { one, value } of shown)
      if (this.y(value) >= this.box.top - 2 && this.y(value) <= this.box.bottom + 2)
        this.marks.append(node("circle", { class: `dot g${one.color}`, cx: place, cy: this.y(value), r: 4 }));
    const unit = unitOf(this.axis, x1);
    const heading = this.axis === "steps" ? `${whole.format(x)} steps` : this.axis === "score" ? `score above ${formatValue(x)}`
      : `${formatValue(x / unit.size)} ${unit.label.replace(/^wall time \(|\)$/g, "")}`;
    const rows = shown.sort((a, b) => b.value - a.value).map(({ one, value, low, high }) => html("tr", "",
      html("th", "", html("i", `swatch g${one.color}`), one.group), html("td", "", formatValue(value)),
      html("td", "interval", low === null || high === null ? "" : `[${formatValue(low)}, ${formatValue(high)}]`)));
    this.tip.replaceChildren(html("div", "at", heading), html("table", "", html("tbody", "", ...rows)));
    const width = this.tip.offsetWidth, room = this.plot.clientWidth;
    const beside = place + 14 + width > room ? place - 14 - width : place + 14;
    this.tip.style.transform = `translate(${Math.max(0, Math.min(beside, room - width))}px, ${this.box.top}px)`;
  }
}
