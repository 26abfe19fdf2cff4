// Agent cards: action space, policy outputs, actions and rewards. Shared by the game and the viewer.

/** Creates an element with a class, text, and children. */
export function make(tag, className = "", text = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

/** Formats a number with few digits; a dash if there is none. */
export function brief(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return x.toFixed(digits).replace("-", "−");
}

const ARROWS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };

/** Label of a key, from `KeyboardEvent.code`. */
export function keyLabel(code) {
  return ARROWS[code] ?? code.replace(/^(Key|Digit)/, "");
}

function facts(names) {
  const list = make("dl", "facts");
  const values = names.map((name) => {
    const value = make("dd", "", "–");
    list.append(make("div", "", "", make("dt", "", name), value));
    return value;
  });
  return { list, values };
}

/** Card of one agent. `controls`, for agents played by hand: functions press, release, setValue, releaseValue. */
export class Card {
  constructor(agent, number, color, controls = null, keys = {}) {
    this.agent = agent;
    this.element = make("article", controls ? "card yours" : "card");
    this.element.style.setProperty("--team", color);
    this.element.dataset.agent = agent.name;
    const badge = controls ? [make("span", "badge you", "you")] : [];
    this.state = make("span", "badge", "dead");
    this.state.hidden = true;
    this.element.append(
      make("header", "", "", make("h3", "", agent.name), make("span", "badge", "", swatch(color), agent.team), ...badge, this.state),
    );
    const entry = facts(["reward", "own return", "value"]);
    [this.reward, this.total, this.value] = entry.values;
    this.element.append(entry.list);
    this.choices = [];
    this.parts = [];
    agent.choices.forEach((count, component) => this.#component(component, count, controls, keys, number));
    this.dials = agent.low.map((low, j) => this.#dial(j, low, controls, keys, number));
    if (this.dials.length) this.element.append(make("div", "part", "", ...this.dials.map((dial) => dial.element)));
  }

  #component(component, count, controls, keys, number) {
    const part = make("div", "part");
    part.setAttribute("role", "group");
    const several = this.agent.choices.length > 1;
    part.setAttribute("aria-label", `choices of ${this.agent.name}${several ? `, part ${component + 1}` : ""}`);
    part.append(
      make("div", "head", "", make("span", "", several ? `part ${component + 1}` : ""), make("span"),
        make("span", "probability", "prob."), make("span", "q", "Q"), make("span", "keys")),
    );
    for (let choice = 0; choice < count; choice++) {
      const name = this.agent.choice_names[component]?.[choice] ?? `choice ${choice}`;
      const bar = make("i");
      const probability = make("span", "probability", "–");
      const q = make("span", "q", "–");
      const hints = make("span", "keys");
      for (const [code, means] of Object.entries(keys)) {
        if (means.component === component && means.choice === choice) hints.append(make("kbd", "", keyLabel(code)));
      }
      const row = make(controls ? "button" : "div", "choice", "",
        make("span", "name", name), make("span", "bar", "", bar), probability, q, hints);
      row.dataset.choice = `${component}.${choice}`;
      row.title = name;
      if (controls) {
        row.type = "button";
        row.addEventListener("click", (event) => {
          controls.press(number, component, choice);
          controls.release(number, component, choice);
          if (event.detail) row.blur();
        });
      }
      part.append(row);
      this.choices.push({ component, choice, row, bar, probability, q });
    }
    this.parts.push(part);
    this.element.append(part);
  }

  #dial(j, low, controls, keys, number) {
    const high = this.agent.high[j];
    const name = this.agent.number_names[j] ?? `number ${j}`;
    const value = make("span", "value", "–");
    const gauge = make("div", "gauge");
    const marks = ["std", "mean", "action"].map((kind) => gauge.appendChild(make("span", kind)));
    for (const mark of marks) mark.hidden = true;
    const hints = Object.entries(keys).filter(([, means]) => means.number === j).map(([code]) => keyLabel(code));
    const dial = { low, high, value, marks, slider: null };
    const label = make("span", "name", name);
    if (controls) {
      const slider = make("input");
      Object.assign(slider, { type: "range", min: low, max: high, step: (high - low) / 200 });
      slider.setAttribute("aria-label", `${name} of ${this.agent.name}`);
      slider.addEventListener("input", () => controls.setValue(number, j, Number(slider.value)));
      slider.addEventListener("pointerup", () => slider.blur());
      dial.slider = slider;
      dial.element = make("div", "dial", "", label, make("div", "", "", slider, gauge), value);
      if (hints.length) dial.element.title = `keys ${hints.join(" ")}`;
    } else {
      dial.element = make("div", "dial", "", label, gauge, value);
    }
    return dial;
  }

  /** Shows the agent at a timestep and highlights an action. */
  show(entry, action) {
    this.element.classList.toggle("dead", !entry.alive);
    this.state.hidden = entry.alive;
    this.reward.textContent = brief(entry.reward);
    this.total.textContent = brief(entry.total);
    this.value.textContent = brief(entry.value);
    this.choices.forEach((at, i) => this.#choice(at, i, entry, action));
    for (const part of this.parts) part.classList.toggle("values", Boolean(entry.q) || part.classList.contains("values"));
    this.dials.forEach((dial, j) => this.#number(dial, entry.mean?.[j], entry.std?.[j], action?.continuous?.[j]));
  }

  #choice(at, i, entry, action) {
    const masked = Boolean(entry.mask) && !entry.mask[i];
    const probability = entry.probability?.[i];
    at.row.classList.toggle("masked", masked);
    at.row.classList.toggle("action", action?.discrete?.[at.component] === at.choice);
    if (at.row.tagName === "BUTTON") at.row.setAttribute("aria-disabled", String(masked));
    at.bar.style.width = `${100 * (probability ?? 0)}%`;
    at.probability.textContent =
      masked ? "masked" : probability === undefined || probability === null ? "–" : `${(100 * probability).toFixed(1)}%`;
    at.q.textContent = brief(entry.q?.[i]);
  }

  #number(dial, mean, std, action) {
    const position = (x) => 100 * (Math.min(Math.max(x, dial.low), dial.high) - dial.low) / (dial.high - dial.low || 1);
    const [band, middle, taken] = dial.marks;
    middle.hidden = mean === undefined || mean === null;
    band.hidden = middle.hidden || std === undefined || std === null;
    taken.hidden = action === undefined || action === null;
    if (!middle.hidden) middle.style.left = `${position(mean)}%`;
    if (!band.hidden) {
      band.style.left = `${position(mean - std)}%`;
      band.style.right = `${100 - position(mean + std)}%`;
    }
    if (!taken.hidden) taken.style.left = `${position(action)}%`;
    if (!dial.slider) dial.value.textContent = brief(action ?? mean);
  }

  /** Shows the requested action of an agent played by hand. */
  showRequest(seat) {
    for (const at of this.choices) {
      const chosen = seat.chosen[at.component] === at.choice;
      at.row.classList.toggle("chosen", chosen);
      at.row.setAttribute("aria-pressed", String(chosen));
    }
    this.dials.forEach((dial, j) => {
      if (document.activeElement !== dial.slider) dial.slider.value = seat.numbers[j];
      dial.value.textContent = brief(seat.numbers[j]);
    });
  }
}

/** Description of a timestep. */
export function describe(timestep) {
  const metrics = Object.entries(timestep.metrics ?? {}).map(([name, x]) => `${name} ${brief(x)}`);
  const end = timestep.final ? ["the episode is over", ...metrics] : [];
  return [`episode ${timestep.episode + 1}`, `timestep ${timestep.timestep}`, ...end].join(" · ");
}

/** Number of colors in the style sheet; more teams than that share colors. */
const TEAM_COLORS = 7;

/**
 * CSS color of each team by name, in the order of the agents. Several teams start with the second color, which is that of
 * adversaries in the images of particle worlds.
 */
export function teamColors(header) {
  const teams = [...new Set(header.agents.map((agent) => agent.team))];
  const first = teams.length > 1 ? 1 : 0;
  return new Map(teams.map((team, i) => [team, `var(--team-${(i + first) % TEAM_COLORS})`]));
}

/** A square in the color of a team. */
export function swatch(color) {
  const square = make("i", "swatch");
  square.style.background = color;
  return square;
}

/** Shows returns by team with the colors of teams, which makes the line a legend. */
export function showReturns(element, timestep, colors) {
  const parts = Object.entries(timestep.returns).map(([team, x]) =>
    make("span", "team", "", swatch(colors.get(team)), `${team} ${brief(x)}`));
  element.replaceChildren("team return: ", ...parts.flatMap((part, i) => (i ? [" · ", part] : [part])));
}

/** Sets up a logarithmic speed slider; returns a function that displays a speed. */
export function speedSlider(slider, output, changed) {
  const show = (fps) => { output.textContent = `${fps < 10 ? Number(fps.toFixed(1)) : Math.round(fps)} / s`; };
  slider.addEventListener("input", () => {
    const fps = Math.min(60, Math.max(0.5, 2 ** Number(slider.value)));
    show(fps);
    changed(fps);
  });
  slider.addEventListener("pointerup", () => slider.blur());
  return (fps) => {
    if (document.activeElement !== slider) slider.value = Math.log2(fps);
    show(fps);
  };
}

/** True if a key belongs to the focused element rather than to the page. */
export function isTaken(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return true;
  const at = event.target;
  if (at instanceof HTMLSelectElement || at instanceof HTMLInputElement) return true;
  return at instanceof HTMLButtonElement && (event.code === "Space" || event.code === "Enter");
}
