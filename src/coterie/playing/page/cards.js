// Cards of agents: what each can do, weighs up, did and earned. Shared by the game and the viewer.

/** A new element with a class, text, and children. */
export function make(tag, className = "", text = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  element.append(...children);
  return element;
}

/** A number with few digits; a dash for none. */
export function brief(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  return x.toFixed(digits).replace("-", "−");
}

const ARROWS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓" };

/** What is written on a key. */
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

/** The card of one agent. `hand` has what to call where somebody plays it: press, release, turn, letGo. */
export class Card {
  constructor(agent, number, hand = null, keys = {}) {
    this.agent = agent;
    this.element = make("article", hand ? "card yours" : "card");
    this.element.dataset.agent = agent.name;
    const badge = hand ? [make("span", "badge you", "you")] : [];
    this.state = make("span", "badge", "dead");
    this.state.hidden = true;
    this.element.append(
      make("header", "", "", make("h3", "", agent.name), make("span", "badge", agent.team), ...badge, this.state),
    );
    const told = facts(["reward", "return", "value"]);
    [this.reward, this.total, this.value] = told.values;
    this.element.append(told.list);
    this.choices = [];
    this.parts = [];
    agent.choices.forEach((count, component) => this.#component(component, count, hand, keys, number));
    this.dials = agent.low.map((low, j) => this.#dial(j, low, hand, keys, number));
    if (this.dials.length) this.element.append(make("div", "part", "", ...this.dials.map((dial) => dial.element)));
  }

  #component(component, count, hand, keys, number) {
    const part = make("div", "part");
    part.setAttribute("role", "group");
    const several = this.agent.choices.length > 1;
    part.setAttribute("aria-label", `choices of ${this.agent.name}${several ? `, part ${component + 1}` : ""}`);
    part.append(
      make("div", "head", "", make("span", "", several ? `part ${component + 1}` : ""), make("span"),
        make("span", "share", "chance"), make("span", "worth", "Q"), make("span", "keys")),
    );
    for (let choice = 0; choice < count; choice++) {
      const name = this.agent.choice_names[component]?.[choice] ?? `choice ${choice}`;
      const bar = make("i");
      const share = make("span", "share", "–");
      const worth = make("span", "worth", "–");
      const hints = make("span", "keys");
      for (const [code, means] of Object.entries(keys)) {
        if (means.component === component && means.choice === choice) hints.append(make("kbd", "", keyLabel(code)));
      }
      const row = make(hand ? "button" : "div", "choice", "",
        make("span", "name", name), make("span", "bar", "", bar), share, worth, hints);
      row.dataset.choice = `${component}.${choice}`;
      row.title = name;
      if (hand) {
        row.type = "button";
        row.addEventListener("click", (event) => {
          hand.press(number, component, choice);
          hand.release(number, component, choice);
          if (event.detail) row.blur();
        });
      }
      part.append(row);
      this.choices.push({ component, choice, row, bar, share, worth });
    }
    this.parts.push(part);
    this.element.append(part);
  }

  #dial(j, low, hand, keys, number) {
    const high = this.agent.high[j];
    const name = this.agent.number_names[j] ?? `number ${j}`;
    const value = make("span", "value", "–");
    const gauge = make("div", "gauge");
    const marks = ["spread", "mean", "did"].map((kind) => gauge.appendChild(make("span", kind)));
    for (const mark of marks) mark.hidden = true;
    const hints = Object.entries(keys).filter(([, means]) => means.number === j).map(([code]) => keyLabel(code));
    const dial = { low, high, value, marks, slider: null };
    const label = make("span", "name", name);
    if (hand) {
      const slider = make("input");
      Object.assign(slider, { type: "range", min: low, max: high, step: (high - low) / 200 });
      slider.setAttribute("aria-label", `${name} of ${this.agent.name}`);
      slider.addEventListener("input", () => hand.turn(number, j, Number(slider.value)));
      slider.addEventListener("pointerup", () => slider.blur());
      dial.slider = slider;
      dial.element = make("div", "dial", "", label, make("div", "", "", slider, gauge), value);
      if (hints.length) dial.element.title = `keys ${hints.join(" ")}`;
    } else {
      dial.element = make("div", "dial", "", label, gauge, value);
    }
    return dial;
  }

  /** Shows the agent in a row; did: the action to point out. */
  show(told, did) {
    this.element.classList.toggle("dead", !told.alive);
    this.state.hidden = told.alive;
    this.reward.textContent = brief(told.reward);
    this.total.textContent = brief(told.total);
    this.value.textContent = brief(told.value);
    this.choices.forEach((at, i) => this.#choice(at, i, told, did));
    for (const part of this.parts) part.classList.toggle("values", Boolean(told.q) || part.classList.contains("values"));
    this.dials.forEach((dial, j) => this.#number(dial, told.mean?.[j], told.spread?.[j], did?.continuous?.[j]));
  }

  #choice(at, i, told, did) {
    const masked = Boolean(told.mask) && !told.mask[i];
    const share = told.probability?.[i];
    at.row.classList.toggle("masked", masked);
    at.row.classList.toggle("did", did?.discrete?.[at.component] === at.choice);
    if (at.row.tagName === "BUTTON") at.row.setAttribute("aria-disabled", String(masked));
    at.bar.style.width = `${100 * (share ?? 0)}%`;
    at.share.textContent = masked ? "masked" : share === undefined || share === null ? "–" : `${(100 * share).toFixed(1)}%`;
    at.worth.textContent = brief(told.q?.[i]);
  }

  #number(dial, mean, spread, did) {
    const place = (x) => 100 * (Math.min(Math.max(x, dial.low), dial.high) - dial.low) / (dial.high - dial.low || 1);
    const [band, middle, done] = dial.marks;
    middle.hidden = mean === undefined || mean === null;
    band.hidden = middle.hidden || spread === undefined || spread === null;
    done.hidden = did === undefined || did === null;
    if (!middle.hidden) middle.style.left = `${place(mean)}%`;
    if (!band.hidden) {
      band.style.left = `${place(mean - spread)}%`;
      band.style.right = `${100 - place(mean + spread)}%`;
    }
    if (!done.hidden) done.style.left = `${place(did)}%`;
    if (!dial.slider) dial.value.textContent = brief(did ?? mean);
  }

  /** Shows what is wanted of an agent that somebody plays. */
  want(seat) {
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

/** What a row says of the episode, in words. */
export function told(row) {
  const metrics = Object.entries(row.metrics ?? {}).map(([name, x]) => `${name} ${brief(x)}`);
  const end = row.closing ? ["the episode is over", ...metrics] : [];
  return [`episode ${row.episode + 1}`, `row ${row.row}`, ...end].join(" · ");
}

/** Returns by team, in words. */
export function returned(row) {
  return Object.entries(row.returns).map(([team, x]) => `${team} ${brief(x)}`).join(" · ");
}

/** A slider of speeds, whose steps are powers of two. */
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

/** Whether a key belongs to what has the focus rather than to the page. */
export function isTaken(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return true;
  const at = event.target;
  if (at instanceof HTMLSelectElement || at instanceof HTMLInputElement) return true;
  return at instanceof HTMLButtonElement && (event.code === "Space" || event.code === "Enter");
}
