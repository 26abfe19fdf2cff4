// View page: recorded episodes side by side, all at the same timestep of the same episode.
import { Card, brief, isTaken, make, showReturns, speedSlider, teamColors, describe } from "./cards.js";

const at = (id) => document.getElementById(id);
const MOST_PICTURES = 400;
const AHEAD = 12;

class Panel {
  constructor(number, header, timesteps) {
    this.number = number;
    this.header = header;
    this.timesteps = timesteps;
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
    this.colors = teamColors(header);
    this.cards = header.agents.map((agent, i) => new Card(agent, i, this.colors.get(agent.team)));
    const left = make("div", "", "",
      make("h2", "", header.title), make("p", "file muted", header.file),
      make("figure", "", "", this.canvas), make("p", "line", "", this.where, this.returns));
    this.high = make("span");
    this.low = make("span");
    this.last = make("span");
    left.append(make("div", "axes number muted", "",
      make("div", "values", "", this.high, this.low), this.curve,
      make("div", "times", "", make("span", "", "0"), make("span", "", "timestep"), this.last)));
    const cards = make("section", "cards", "", ...this.cards.map((card) => card.element));
    cards.setAttribute("aria-label", `agents of ${header.file}`);
    this.element = make("section", "panel", "", left, cards);
    this.element.setAttribute("aria-label", header.file);
  }

  /** First timestep and number of timesteps of an episode; the last episode if there are fewer. */
  span(episode) {
    const begins = this.header.episodes;
    const e = Math.min(episode, begins.length - 1);
    return [begins[e], (begins[e + 1] ?? this.timesteps.length) - begins[e]];
  }

  /** Index of a timestep of an episode; its last timestep if it is shorter. */
  index(episode, timestep) {
    const [begin, count] = this.span(episode);
    return begin + Math.min(timestep, count - 1);
  }

  /** Promise of the image of a timestep. */
  picture(index) {
    if (!this.pictures.has(index)) {
      if (this.pictures.size >= MOST_PICTURES) this.pictures.delete(this.pictures.keys().next().value);
      const url = `/recordings/${this.number}/frames/${index}`;
      this.pictures.set(index, fetch(url).then((found) => found.blob()).then((blob) => createImageBitmap(blob)));
    }
    return this.pictures.get(index);
  }

  show(index, picture) {
    const timestep = this.timesteps[index];
    const next = this.timesteps[index + 1];
    this.canvas.getContext("2d").drawImage(picture, 0, 0);
    this.canvas.dataset.index = index;
    this.canvas.setAttribute("aria-label", `${this.header.file}, ${describe(timestep)}`);
    this.where.textContent = describe(timestep);
    showReturns(this.returns, timestep, this.colors);
    timestep.agents.forEach((agent, i) => this.cards[i].show(agent, next?.episode === timestep.episode ? next.agents[i].action : null));
    const [begin, count] = this.span(timestep.episode);
    if (this.drawn !== timestep.episode) this.#draw(timestep.episode);
    const x = (100 * (index - begin)) / Math.max(1, count - 1);
    this.cursor.setAttribute("x1", x);
    this.cursor.setAttribute("x2", x);
    for (let i = 1; i <= AHEAD && index + i < this.timesteps.length; i++) this.picture(index + i);
  }

  /** Draws the return of each team over an episode. */
  #draw(episode) {
    this.drawn = episode;
    const [begin, count] = this.span(episode);
    const timesteps = this.timesteps.slice(begin, begin + count);
    const teams = Object.keys(timesteps[0].returns);
    const lines = teams.map((team) => timesteps.map((timestep) => timestep.returns[team] ?? 0));
    const [low, high] = returnRange();
    this.high.textContent = brief(high);
    this.low.textContent = brief(low);
    this.last.textContent = count - 1;
    const y = (value) => 46 - (42 * (value - low)) / (high - low || 1);
    this.curve.setAttribute("viewBox", "0 0 100 50");
    this.curve.setAttribute("aria-label", `team return over the episode, on an axis from ${brief(low)} to ${brief(high)}`);
    this.curve.replaceChildren(...lines.map((line, k) => {
      const curve = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      const points = line.map((value, i) => `${(100 * i) / Math.max(1, count - 1)},${y(value)}`);
      curve.setAttribute("points", points.join(" "));
      curve.dataset.team = teams[k];
      curve.style.stroke = this.colors.get(teams[k]);
      return curve;
    }));
    this.cursor = straight("cursor", 0, 0, 0, 50);
    this.curve.append(straight("zero", 0, y(0), 100, y(0)), this.cursor);
  }
}

/** A straight line of a curve's drawing. */
function straight(name, x1, y1, x2, y2) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.setAttribute("class", name);
  for (const [key, value] of Object.entries({ x1, y1, x2, y2 })) line.setAttribute(key, value);
  return line;
}

let panels = [];
let range = null;

/** Lowest and highest return, with 0, of all episodes and recordings: curves have one scale. */
function returnRange() {
  if (range === null) {
    range = [0, 0];
    for (const panel of panels) {
      for (const timestep of panel.timesteps) {
        for (const value of Object.values(timestep.returns)) {
          range = [Math.min(range[0], value ?? 0), Math.max(range[1], value ?? 0)];
        }
      }
    }
  }
  return range;
}

let episode = 0;
let timestep = 0;
let fps = 10;
let playing = false;
let requests = 0;

const longest = () => Math.max(...panels.map((panel) => panel.span(episode)[1]));
const episodes = () => Math.max(...panels.map((panel) => panel.header.episodes.length));

/** Shows the timestep in all panels at once when all images are loaded; a later call supersedes an earlier one. */
async function show() {
  const number = ++requests;
  const places = panels.map((panel) => panel.index(episode, timestep));
  const pictures = await Promise.all(panels.map((panel, i) => panel.picture(places[i])));
  if (number < requests) return;
  panels.forEach((panel, i) => panel.show(places[i], pictures[i]));
  const scrub = at("scrub");
  scrub.max = longest() - 1;
  scrub.value = timestep;
  scrub.setAttribute("aria-valuetext", `timestep ${timestep}`);
  at("episode").value = episode;
  at("where").textContent = `timestep ${timestep} of ${longest() - 1}`;
  history.replaceState(null, "", `#episode=${episode + 1}&timestep=${timestep}`);
}

function go(toEpisode, toTimestep) {
  episode = Math.min(Math.max(toEpisode, 0), episodes() - 1);
  timestep = Math.min(Math.max(toTimestep, 0), longest() - 1);
  return show();
}

/** Goes to the next timestep, or to the next episode after the last one. Returns false at the end of the recordings. */
async function forward() {
  if (timestep + 1 < longest()) await go(episode, timestep + 1);
  else if (episode + 1 < episodes()) await go(episode + 1, 0);
  else return false;
  return true;
}

async function back() {
  if (timestep > 0) await go(episode, timestep - 1);
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
  if (timestep + 1 >= longest() && episode + 1 >= episodes()) await go(0, 0);
  while (playing && mine === running) {
    const pause = new Promise((resolve) => setTimeout(resolve, 1000 / fps));
    await pause;
    if (!playing || mine !== running) return;
    if (!(await forward())) setPlaying(false);
  }
}

function paused(action) {
  return () => {
    setPlaying(false);
    return action();
  };
}

const KEYS = {
  Space: () => setPlaying(!playing),
  ArrowRight: paused(forward),
  ArrowLeft: paused(back),
  Home: paused(() => go(episode, 0)),
  End: paused(() => go(episode, Infinity)),
  PageDown: paused(() => go(episode + 1, 0)),
  PageUp: paused(() => go(episode - 1, 0)),
};

async function begin() {
  const headers = await (await fetch("/recordings")).json();
  panels = await Promise.all(headers.map(async (header, i) => {
    const text = await (await fetch(`/recordings/${i}/timesteps`)).text();
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
  await go((Number(asked.get("episode")) || 1) - 1, Number(asked.get("timestep")) || 0);
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
begin().catch((error) => { at("link").textContent = `loading failed: ${error.message}`; });
