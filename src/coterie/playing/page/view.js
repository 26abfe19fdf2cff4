// Recorded episodes, one or several side by side, always at the same row of the same episode.
import { Card, brief, isTaken, make, returned, speedSlider, told } from "./cards.js";

const at = (id) => document.getElementById(id);
const MOST_PICTURES = 400;
const AHEAD = 12;

class Panel {
  constructor(number, header, rows) {
    this.number = number;
    this.header = header;
    this.rows = rows;
    this.pictures = new Map();
    this.canvas = make("canvas", "picture");
    this.canvas.width = header.width;
    this.canvas.height = header.height;
    this.canvas.setAttribute("role", "img");
    this.where = make("span", "number");
    this.returns = make("span", "number muted");
    this.curve = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.curve.setAttribute("class", "curve");
    this.curve.setAttribute("preserveAspectRatio", "none");
    this.curve.setAttribute("role", "img");
    this.cards = header.agents.map((agent, i) => new Card(agent, i));
    const left = make("div", "", "",
      make("h2", "", header.title), make("p", "file muted", header.file),
      make("figure", "", "", this.canvas), make("p", "line", "", this.where, this.returns));
    left.append(this.curve);
    const cards = make("section", "cards", "", ...this.cards.map((card) => card.element));
    cards.setAttribute("aria-label", `agents of ${header.file}`);
    this.element = make("section", "panel", "", left, cards);
    this.element.setAttribute("aria-label", header.file);
  }

  /** First row and number of rows of an episode; past the last episode, of the last. */
  span(episode) {
    const begins = this.header.episodes;
    const e = Math.min(episode, begins.length - 1);
    return [begins[e], (begins[e + 1] ?? this.rows.length) - begins[e]];
  }

  /** The index of a row of an episode; past its end, of its last. */
  index(episode, row) {
    const [begin, count] = this.span(episode);
    return begin + Math.min(row, count - 1);
  }

  /** A promise of the picture of a row. */
  picture(index) {
    if (!this.pictures.has(index)) {
      if (this.pictures.size >= MOST_PICTURES) this.pictures.delete(this.pictures.keys().next().value);
      const url = `/recordings/${this.number}/frames/${index}`;
      this.pictures.set(index, fetch(url).then((found) => found.blob()).then((blob) => createImageBitmap(blob)));
    }
    return this.pictures.get(index);
  }

  show(index, picture) {
    const row = this.rows[index];
    const next = this.rows[index + 1];
    this.canvas.getContext("2d").drawImage(picture, 0, 0);
    this.canvas.dataset.index = index;
    this.canvas.setAttribute("aria-label", `${this.header.file}, ${told(row)}`);
    this.where.textContent = told(row);
    this.returns.textContent = `return: ${returned(row)}`;
    row.agents.forEach((agent, i) => this.cards[i].show(agent, next?.episode === row.episode ? next.agents[i].did : null));
    const [begin, count] = this.span(row.episode);
    if (this.drawn !== row.episode) this.#draw(row.episode);
    const x = (100 * (index - begin)) / Math.max(1, count - 1);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    for (let i = 1; i <= AHEAD && index + i < this.rows.length; i++) this.picture(index + i);
  }

  /** The return of every team over the rows of an episode. */
  #draw(episode) {
    this.drawn = episode;
    const [begin, count] = this.span(episode);
    const rows = this.rows.slice(begin, begin + count);
    const lines = Object.keys(rows[0].returns).map((team) => rows.map((row) => row.returns[team] ?? 0));
    const all = lines.flat();
    const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
    const y = (value) => 46 - (42 * (value - low)) / (high - low || 1);
    this.curve.setAttribute("viewBox", "0 0 100 50");
    this.curve.setAttribute("aria-label", `return over the episode, from ${brief(low)} to ${brief(high)}`);
    this.curve.replaceChildren(...lines.map((line) => {
      const curve = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      const points = line.map((value, i) => `${(100 * i) / Math.max(1, count - 1)},${y(value)}`);
      curve.setAttribute("points", points.join(" "));
      return curve;
    }));
    this.cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    this.cursor.setAttribute("class", "cursor");
    this.cursor.setAttribute("y1", 0);
    this.cursor.setAttribute("y2", 50);
    this.curve.append(this.cursor);
  }
}

let panels = [];
let episode = 0;
let row = 0;
let fps = 10;
let playing = false;
let wanted = 0;

const longest = () => Math.max(...panels.map((panel) => panel.span(episode)[1]));
const episodes = () => Math.max(...panels.map((panel) => panel.header.episodes.length));

/** Shows the row in all panels at once, when all pictures are there; a later call overtakes an earlier one. */
async function show() {
  const number = ++wanted;
  const places = panels.map((panel) => panel.index(episode, row));
  const pictures = await Promise.all(panels.map((panel, i) => panel.picture(places[i])));
  if (number < wanted) return;
  panels.forEach((panel, i) => panel.show(places[i], pictures[i]));
  const scrub = at("scrub");
  scrub.max = longest() - 1;
  scrub.value = row;
  scrub.setAttribute("aria-valuetext", `row ${row}`);
  at("episode").value = episode;
  at("where").textContent = `row ${row} of ${longest() - 1}`;
  history.replaceState(null, "", `#episode=${episode + 1}&row=${row}`);
}

function go(toEpisode, toRow) {
  episode = Math.min(Math.max(toEpisode, 0), episodes() - 1);
  row = Math.min(Math.max(toRow, 0), longest() - 1);
  return show();
}

/** A row on; into the next episode behind the last row. False at the very end. */
async function on() {
  if (row + 1 < longest()) await go(episode, row + 1);
  else if (episode + 1 < episodes()) await go(episode + 1, 0);
  else return false;
  return true;
}

async function back() {
  if (row > 0) await go(episode, row - 1);
  else if (episode > 0) await go(episode - 1, Infinity);
}

function setPlaying(value) {
  playing = value;
  at("pause").firstElementChild.textContent = playing ? "Pause" : "Play";
  at("pause").setAttribute("aria-pressed", String(playing));
  if (playing) run();
}

let running = 0;
async function run() {
  const mine = ++running;
  if (row + 1 >= longest() && episode + 1 >= episodes()) await go(0, 0);
  while (playing && mine === running) {
    const pause = new Promise((resolve) => setTimeout(resolve, 1000 / fps));
    await pause;
    if (!playing || mine !== running) return;
    if (!(await on())) setPlaying(false);
  }
}

function still(action) {
  return () => {
    setPlaying(false);
    return action();
  };
}

const KEYS = {
  Space: () => setPlaying(!playing),
  ArrowRight: still(on),
  ArrowLeft: still(back),
  Home: still(() => go(episode, 0)),
  End: still(() => go(episode, Infinity)),
  PageDown: still(() => go(episode + 1, 0)),
  PageUp: still(() => go(episode - 1, 0)),
};

async function begin() {
  const headers = await (await fetch("/recordings")).json();
  panels = await Promise.all(headers.map(async (header, i) => {
    const text = await (await fetch(`/recordings/${i}/rows`)).text();
    return new Panel(i, header, text.trim().split("\n").map((line) => JSON.parse(line)));
  }));
  const main = at("panels");
  main.style.setProperty("--panels", panels.length);
  main.classList.toggle("one", panels.length === 1);
  main.replaceChildren(...panels.map((panel) => panel.element));
  at("episode").replaceChildren(...Array.from({ length: episodes() }, (_, i) => new Option(i + 1, i)));
  for (const id of ["pause", "back", "step", "episode", "scrub", "speed"]) at(id).disabled = false;
  at("link").textContent = "";
  const asked = new URLSearchParams(location.hash.slice(1));
  await go((Number(asked.get("episode")) || 1) - 1, Number(asked.get("row")) || 0);
}

speedSlider(at("speed"), at("fps"), (value) => { fps = value; })(fps);
at("pause").addEventListener("click", (event) => { KEYS.Space(); if (event.detail) at("pause").blur(); });
at("back").addEventListener("click", KEYS.ArrowLeft);
at("step").addEventListener("click", KEYS.ArrowRight);
at("episode").addEventListener("change", (event) => { setPlaying(false); go(Number(event.target.value), 0); });
at("scrub").addEventListener("input", (event) => { setPlaying(false); go(episode, Number(event.target.value)); });
at("scrub").addEventListener("pointerup", () => at("scrub").blur());
document.addEventListener("keydown", (event) => {
  if (isTaken(event) || !(event.code in KEYS)) return;
  event.preventDefault();
  KEYS[event.code]();
});
begin().catch((error) => { at("link").textContent = `cannot show this: ${error.message}`; });
