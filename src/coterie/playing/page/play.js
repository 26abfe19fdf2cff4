// Play and watch pages: receives images and timesteps through a web socket and sends key presses and button clicks.
import { Card, isTaken, make, showReturns, speedSlider, teamColors, describe } from "./cards.js";
import { showRun } from "./run.js";

const at = (id) => document.getElementById(id);
const canvas = at("picture");
const brush = canvas.getContext("2d");
const socket = new WebSocket(`ws://${location.host}/socket`);
socket.binaryType = "arraybuffer";

let cards = [];
let seats = [];
let colors = new Map();
let paused = true;
let watching = false;
const held = new Map();

const send = (command) => {
  if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(command));
};
const controls = {
  press: (agent, component, choice) => send({ do: "press", agent, component, choice }),
  release: (agent, component, choice) => send({ do: "release", agent, component, choice }),
  setValue: (agent, number, value) => send({ do: "set_value", agent, number, value }),
  releaseValue: (agent, number) => send({ do: "release_value", agent, number }),
};
const showSpeed = speedSlider(at("speed"), at("fps"), (fps) => send({ do: "speed", fps }));

function hello({ header, seats: playerSeats }) {
  document.title = `${header.title} · Coterie`;
  at("title").textContent = header.title;
  canvas.width = header.width;
  canvas.height = header.height;
  seats = playerSeats;
  const played = new Map(playerSeats.map((seat) => [seat.agent, seat]));
  colors = teamColors(header);
  cards = header.agents.map((agent, i) => new Card(agent, i, colors.get(agent.team), played.has(i) ? controls : null, played.get(i)?.keys ?? {}));
  const order = [...cards.keys()].sort((a, b) => Number(played.has(b)) - Number(played.has(a)) || a - b);
  at("cards").replaceChildren(...order.map((i) => cards[i].element));
  for (const id of ["pause", "step", "new", "speed"]) at(id).disabled = false;
}

let received = 0;
let shown = 0;
async function scene({ timestep }, picture) {
  const number = ++received;
  note("");
  const image = await createImageBitmap(new Blob([picture], { type: "image/webp" }));
  if (number < shown) return; // a later image was decoded sooner
  shown = number;
  brush.drawImage(image, 0, 0);
  canvas.setAttribute("aria-label", `the game, ${describe(timestep)}`);
  canvas.dataset.timestep = timestep.timestep;
  canvas.dataset.episode = timestep.episode;
  at("where").textContent = describe(timestep);
  showReturns(at("returns"), timestep, colors);
  timestep.agents.forEach((agent, i) => cards[i].show(agent, agent.action));
}

function state(words) {
  paused = words.paused;
  at("pause").firstElementChild.textContent = paused ? "Play" : "Pause";
  at("pause").setAttribute("aria-pressed", String(!paused));
  showSpeed(words.fps);
  for (const seat of words.seats) cards[seat.agent].showRequest(seat);
  const waiting = words.waiting.length ? `waiting for ${words.waiting.join(" and ")}` : "";
  at("link").textContent = waiting || (paused ? "paused" : "playing");
}

/** A run that is watched, which the server sends in its first messages; it sends none if a game is played. */
function run(words) {
  watching = true;
  showRun(words);
}

function note(text) {
  at("note").textContent = text;
  at("note").classList.toggle("shown", Boolean(text));
}

socket.addEventListener("message", async (event) => {
  const view = new DataView(event.data);
  const length = view.getUint32(0);
  const words = JSON.parse(new TextDecoder().decode(new Uint8Array(event.data, 4, length)));
  if (words.kind === "hello") hello(words);
  else if (words.kind === "scene") scene(words, new Uint8Array(event.data, 4 + length));
  else if (words.kind === "state") state(words);
  else if (words.kind === "run") run(words);
  else note(words.text);
});
socket.addEventListener("close", () => {
  at("link").textContent = "not connected";
  note(watching ? "coterie watch has stopped. Start it again and reload this page." : "The game has ended. Start coterie play again and reload this page.");
  for (const id of ["pause", "step", "new", "speed"]) at(id).disabled = true;
});

const act = {
  pause: () => send({ do: "pause", on: !paused }),
  step: () => send({ do: "step" }),
  new: () => send({ do: "new" }),
};
for (const id of Object.keys(act)) {
  at(id).addEventListener("click", (event) => {
    act[id]();
    if (event.detail) at(id).blur();
  });
}

const COMMON = { Space: act.pause, Period: act.step, KeyN: act.new };

function releaseKey(code) {
  const means = held.get(code);
  held.delete(code);
  if (means?.number !== undefined) controls.releaseValue(means.agent, means.number);
  else if (means) controls.release(means.agent, means.component, means.choice);
}

document.addEventListener("keydown", (event) => {
  if (isTaken(event)) return;
  const seat = seats.find((one) => event.code in one.keys);
  if (!seat && !(event.code in COMMON)) return;
  event.preventDefault();
  if (event.repeat) return;
  if (!seat) {
    COMMON[event.code]();
    return;
  }
  const means = { agent: seat.agent, ...seat.keys[event.code] };
  held.set(event.code, means);
  if (means.number !== undefined) controls.setValue(means.agent, means.number, means.value);
  else controls.press(means.agent, means.component, means.choice);
});
document.addEventListener("keyup", (event) => releaseKey(event.code));
window.addEventListener("blur", () => [...held.keys()].forEach(releaseKey));
