// Acts with teams that `coterie export --format numpy` (or torch) wrote, in browsers and Node.js, without packages.
//
//     import { Player } from "./coterie_player.mjs";
//
//     const player = await Player.open("exported/agent");   // a folder or URL, or an array of those of several teams
//     player.reset();
//     const actions = player.act({ agent_0: obs0, agent_1: obs1 });
//
// Observations are what the environment returns: numbers, arrays, and objects. Reading an export executes no code of it.

export class PolicyError extends Error {}

export class Player {
  // Reads teams. Options: mode ("greedy", "sample", or "auto" for that of evaluation), and random, a replacement of
  // Math.random.
  static async open(places, options = {}) {
    const teams = [];
    for (const place of [places].flat()) {
      const info = JSON.parse(new TextDecoder().decode(await read(place, "policy.json")));
      if (info.format !== "coterie-policy" || info.version !== 1) throw new PolicyError(`${place}: not an export`);
      if (!info.network) throw new PolicyError(`${place}: no weights. Export again with --format numpy`);
      teams.push([info, tensors(await read(place, "weights.safetensors"))]);
    }
    return new Player(teams, options);
  }

  constructor(teams, { mode = "auto", random = Math.random } = {}) {
    this.teams = teams.map(([info, weights]) => new Team(info, weights, mode === "auto" ? info.mode : mode, random));
    this.agents = this.teams.flatMap((team) => team.info.agents);
  }

  // Starts a new episode with zero hidden states.
  reset() {
    for (const team of this.teams) team.reset();
  }

  // Returns actions by agent for observations by agent, where missing agents are dead; or the action for the observation
  // of the only agent. Masks are flat arrays of 0 and 1 in the same form, or in an observation's action_mask.
  act(obs, masks = {}) {
    const [only, ...others] = this.agents;
    const isNamed = isObject(obs) && Object.keys(obs).every((name) => this.agents.includes(name));
    if (!isNamed && others.length) {
      const unknown = isObject(obs) && Object.keys(obs).find((name) => !this.agents.includes(name));
      const problem = unknown ? `no agent '${unknown}'. There are ` : "pass an object by agent: ";
      throw new PolicyError(`obs: ${problem}${this.agents.join(", ")}`);
    }
    const given = isNamed ? obs : { [only]: obs };
    const allowed = isNamed || (isObject(masks) && !Array.isArray(masks)) ? masks : { [only]: masks };
    const actions = Object.assign({}, ...this.teams.map((team) => team.act(given, allowed)));
    return isNamed ? Object.fromEntries(Object.keys(obs).map((name) => [name, actions[name]])) : actions[only];
  }
}

// ------------------------------------------------------------------------------------------------------------- network

class Team {
  constructor(info, weights, mode, random) {
    Object.assign(this, { info, weights, mode, random });
    this.roles = Object.fromEntries(info.roles.map((role) => [role.name, role]));
    this.hiddenSizes = Object.fromEntries(
      info.inputs.filter((entry) => entry.kind === "hidden").map((entry) => [entry.key, entry.shape.at(-1)]),
    );
    this.forgetsDead = info.inputs.some((entry) => entry.kind === "alive");
    this.reset();
  }

  reset() {
    this.hidden = this.info.agents.map(() => this.zeros());
    this.seen = this.info.agents.map(() => undefined);
    this.alive = this.info.agents.map(() => false);
  }

  zeros() {
    return Object.fromEntries(Object.entries(this.hiddenSizes).map(([key, size]) => [key, Array(size).fill(0)]));
  }

  act(given, masks) {
    const actions = {};
    if (!this.info.agents.some((agent) => agent in given)) {
      this.alive.fill(false);
      this.seen.fill(undefined);
      return actions;
    }
    for (const block of this.info.network) {
      const [start, stop] = block.agents;
      let index = 0; // within the block
      for (const name of block.roles) {
        const role = this.roles[name];
        for (const agent of role.agents) {
          const place = this.info.agents.indexOf(agent);
          const isAlive = agent in given;
          if (!this.alive[place] && isAlive) this.hidden[place] = this.zeros();
          this.alive[place] = isAlive;
          const [seen, mask] = isAlive ? splitMask(role, given[agent]) : [undefined, undefined];
          const read = () => readObservation(role, seen, `obs of '${agent}'`, this.seen[place]);
          const features = isAlive ? read() : deadObservation(role);
          this.seen[place] = isAlive ? features : undefined;
          const own = { index, count: stop - start, hidden: this.hidden[place] };
          const out = this.forward(block, features, own);
          const legal = checkedMask(role, isAlive ? (mask ?? masks?.[agent]) : undefined, agent);
          const action = this.decide(block, role, out, legal, index);
          this.hidden[place] = { ...own.hidden, ...own.after };
          if ("last" in this.hiddenSizes) this.hidden[place].last = this.lastAction(role, action, isAlive);
          if (isAlive) actions[agent] = nativeAction(role.action, structuredClone(action));
          index += 1;
        }
      }
    }
    return actions;
  }

  // The part of a tensor that belongs to a parameter set, of `size` numbers.
  part(name, set, size) {
    const data = this.weights[name];
    return data.length === size ? data : data.subarray(set * size, (set + 1) * size);
  }

  forward(block, features, own) {
    const set = block.sets ? own.index : 0;
    let x = [];
    for (const sensor of block.sensors) x.push(...this.encode(block, sensor, features[sensor.name], set, own));
    if (block.last_action) x.push(...own.hidden.last.slice(0, block.last_action));
    if (block.agent_ids) x.push(...Array.from({ length: own.count }, (_, i) => Number(i === own.index)));
    for (const layer of block.layers) x = this.layer(layer, x, set);
    if (block.rnn) {
      own.after = block.rnn.kind === "gru" ? this.gru(block.rnn, x, own, set) : this.lstm(block.rnn, x, own, set);
      x = own.after.h;
    }
    return this.layer(block.head, x, set);
  }

  encode(block, sensor, { values, shape, dtype }, set, own) {
    if (!sensor.convolutions?.length) {
      const norm = block.normalizer;
      if (!norm) return values;
      const mean = this.part(norm.mean, own.index, values.length);
      const std = this.part(norm.std, own.index, values.length);
      return values.map((value, i) => clip((value - mean[i]) / std[i], norm.clip));
    }
    let [height, width, channels] = shape;
    let x = dtype === "uint8" ? values.map((value) => value / 255) : values;
    for (const layer of sensor.convolutions) {
      const sets = block.sets ? own.count : 1;
      const count = this.weights[layer.bias].length / sets;
      const size = Math.sqrt(this.weights[layer.weight].length / (sets * count * channels));
      const weight = this.part(layer.weight, set, count * channels * size * size);
      const bias = this.part(layer.bias, set, count);
      const rows = Math.floor((height - size) / layer.stride) + 1;
      const columns = Math.floor((width - size) / layer.stride) + 1;
      const out = new Array(rows * columns * count);
      for (let row = 0; row < rows; row++)
        for (let column = 0; column < columns; column++)
          for (let k = 0; k < count; k++) {
            let sum = bias[k];
            for (let c = 0; c < channels; c++)
              for (let i = 0; i < size; i++)
                for (let j = 0; j < size; j++)
                  sum +=
                    weight[((k * channels + c) * size + i) * size + j] *
                    x[((row * layer.stride + i) * width + column * layer.stride + j) * channels + c];
            out[(row * columns + column) * count + k] = Math.max(sum, 0);
          }
      [x, height, width, channels] = [out, rows, columns, count];
    }
    return Array.from({ length: x.length }, (_, i) => {
      const [k, pixel] = [Math.floor(i / (height * width)), i % (height * width)]; // channels come first
      return x[pixel * channels + k];
    });
  }

  product(name, x, set, size) {
    const weight = this.part(name, set, x.length * size);
    const out = new Array(size).fill(0);
    for (let i = 0; i < x.length; i++) for (let j = 0; j < size; j++) out[j] += x[i] * weight[i * size + j];
    return out;
  }

  layer(layer, x, set) {
    if (layer.kind === "linear") {
      const sets = this.setsOf(layer.weight);
      const size = this.weights[layer.weight].length / (sets * x.length);
      const bias = this.part(layer.bias, set, size);
      return this.product(layer.weight, x, set, size).map((value, j) => value + bias[j]);
    }
    if (layer.kind === "layer_norm") {
      const mean = sum(x) / x.length;
      const scale = Math.sqrt(sum(x.map((value) => (value - mean) ** 2)) / x.length + 1e-5);
      const [weight, bias] = [this.part(layer.weight, set, x.length), this.part(layer.bias, set, x.length)];
      return x.map((value, i) => ((value - mean) / scale) * weight[i] + bias[i]);
    }
    return x.map(ACTIVATIONS[layer.kind]);
  }

  // Number of parameter sets of a matrix: the leading axis, if there are three.
  setsOf(name) {
    const { shape } = this.weights[name];
    return shape.length === 3 ? shape[0] : 1;
  }

  gru(rnn, x, { hidden: { h } }, set) {
    const n = h.length;
    const bias = this.part(rnn.bias, set, 3 * n);
    const inputs = this.product(rnn.input_weight, x, set, 3 * n).map((value, j) => value + bias[j]);
    const recurrent = this.product(rnn.weight, h, set, 3 * n);
    const extra = this.part(rnn.recurrent_bias, set, n);
    return {
      h: h.map((old, i) => {
        const [r, z] = [sigmoid(inputs[i] + recurrent[i]), sigmoid(inputs[n + i] + recurrent[n + i])];
        const fresh = Math.tanh(inputs[2 * n + i] + r * (recurrent[2 * n + i] + extra[i]));
        return fresh + z * (old - fresh);
      }),
    };
  }

  lstm(rnn, x, { hidden: { h, c } }, set) {
    const n = h.length;
    const bias = this.part(rnn.bias, set, 4 * n);
    const recurrent = this.product(rnn.weight, h, set, 4 * n);
    const gates = this.product(rnn.input_weight, x, set, 4 * n).map((value, j) => value + bias[j] + recurrent[j]);
    const cell = c.map((old, i) => sigmoid(gates[n + i]) * old + sigmoid(gates[i]) * Math.tanh(gates[3 * n + i]));
    return { h: cell.map((value, i) => sigmoid(gates[2 * n + i]) * Math.tanh(value)), c: cell };
  }

  decide(block, role, out, mask, index) {
    const { choices, continuous, kind, ...head } = block.action;
    const size = sum(choices);
    const samples = this.mode === "sample";
    const action = { discrete: [], continuous: [] };
    const explores = kind === "epsilon_greedy" && samples && this.random() < head.epsilon;
    let start = 0;
    for (const count of choices) {
      const scores = out.slice(start, start + count).map((score, i) => {
        if (!mask[start + i]) return -Infinity;
        if (explores) return this.random();
        return samples && kind !== "epsilon_greedy" ? score - Math.log(-Math.log(this.random())) : score;
      });
      action.discrete.push(scores.indexOf(Math.max(...scores)));
      start += count;
    }
    for (let i = 0; i < continuous; i++) {
      const [mean, raw] = [out[size + i], out[size + continuous + i]];
      const noise = samples && kind !== "deterministic" ? normal(this.random) : 0;
      let value = mean;
      if (kind === "stochastic") {
        let logStd = (raw ?? 0) + head.init_log_std;
        if (head.log_std) logStd = this.part(head.log_std, index, continuous)[i];
        value = mean + noise * Math.exp(Math.min(Math.max(logStd, -5), 2));
      } else if (kind === "squashed") {
        value = Math.tanh(mean + noise * Math.exp(-1.5 + 3.5 * Math.tanh(raw + Math.atanh(1.5 / 3.5))));
      } else value = Math.tanh(mean);
      action.continuous.push(clip(value, 1));
    }
    return action;
  }

  lastAction(role, { discrete, continuous }, isAlive) {
    const last = Array(this.hiddenSizes.last).fill(0);
    if (!isAlive && this.forgetsDead) return last;
    let start = 0;
    role.choices.forEach((count, k) => {
      last[start + discrete[k]] = 1;
      start += count;
    });
    continuous.forEach((value, i) => (last[start + i] = value));
    return last;
  }
}

const sigmoid = (x) => 0.5 * (Math.tanh(0.5 * x) + 1);
const sum = (values) => values.reduce((a, b) => a + b, 0);
const clip = (value, limit) => Math.min(Math.max(value, -limit), limit);
const normal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

const ACTIVATIONS = {
  tanh: (x) => Math.tanh(x),
  relu: (x) => Math.max(x, 0),
  elu: (x) => (x > 0 ? x : Math.expm1(x)),
  gelu: (x) => x * 0.5 * (1 + erf(x / Math.SQRT2)),
  silu: (x) => x * sigmoid(x),
};

// Its Taylor series, and 1 where that differs by less than 2e-8.
function erf(x) {
  if (Math.abs(x) > 4) return Math.sign(x);
  let [term, total] = [x, x];
  for (let n = 1; n < 200 && Math.abs(term) > 1e-17; n++) {
    term *= (-x * x) / n;
    total += term / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * total;
}

// -------------------------------------------------------------------------------------------------------- observations

const isObject = (value) => typeof value === "object" && value !== null && !isArray(value);
const isArray = (value) => Array.isArray(value) || ArrayBuffer.isView(value);

function sensorsOf(role) {
  return role.sensors ?? { "": role };
}

function deadObservation(role) {
  const zeros = ({ shape, dtype }) => ({ values: Array(product(shape)).fill(0), shape, dtype });
  return Object.fromEntries(Object.entries(sensorsOf(role)).map(([name, sensor]) => [name, zeros(sensor)]));
}

const product = (shape) => shape.reduce((a, b) => a * b, 1);

// The observation and the mask of {observation, action_mask}, or of an object of sensors with a mask.
function splitMask(role, value) {
  const keys = new Set(Object.entries(role.sensors ?? {}).flatMap(([name, { keys = [name] }]) => [name, String(keys[0])]));
  if (!isObject(value) || keys.has("action_mask") || !("action_mask" in value)) return [value, undefined];
  const { action_mask: mask, ...rest } = value;
  const names = Object.keys(rest);
  return [names.length === 1 && !keys.has(names[0]) ? rest[names[0]] : rest, mask];
}

function checkedMask(role, mask, agent) {
  const size = sum(role.choices);
  if (mask === undefined || mask === null) return Array(size).fill(1);
  if (!isArray(mask) || mask.length !== size || [...mask].some((value) => Number(value) !== 0 && Number(value) !== 1))
    throw new PolicyError(`action_mask of '${agent}': expected ${size} values of 0 and 1`);
  let start = 0;
  for (const count of role.choices) {
    if (![...mask].slice(start, start + count).some(Number))
      throw new PolicyError(`action_mask of '${agent}' leaves no choice: ${mask}`);
    start += count;
  }
  return [...mask].map(Number);
}

// Sensors of an observation. `before` are those of the agent's step before, whose frames are stacked with the new one.
function readObservation(role, value, what, before) {
  if (!role.sensors) return { "": readSensor(role, value, what, before?.[""]) };
  const parts = {};
  const names = Object.keys(role.sensors);
  const all = `The sensors are ${names.map((name) => `'${name}'`).join(", ")}`;
  const tree = {};
  for (const [name, { keys = name.split(".") }] of Object.entries(role.sensors)) {
    let place = tree;
    for (const key of keys.slice(0, -1)) place = place[key] ??= {};
    place[keys.at(-1)] = name;
  }
  const collect = (part, place) => {
    if (typeof part !== "object" || part === null || ArrayBuffer.isView(part)) {
      const missing = names.find((name) => !(name in parts));
      throw new PolicyError(`${what} lacks the sensor '${missing}': it is ${part}. ${all}`);
    }
    for (const [key, own] of Object.entries(part)) {
      const next = Object.hasOwn(place, key) ? place[key] : place === tree && names.includes(key) ? key : undefined;
      if (next === undefined) throw new PolicyError(`${what} has no sensor '${key}'. ${all}`);
      if (typeof next === "string") parts[next] = own;
      else collect(own, next);
    }
  };
  collect(value, tree);
  const missing = names.find((name) => !(name in parts));
  if (missing !== undefined) throw new PolicyError(`${what} lacks the sensor '${missing}'. ${all}`);
  const read = (name) => readSensor(role.sensors[name], parts[name], `${what}, sensor '${name}'`, before?.[name]);
  return Object.fromEntries(names.map((name) => [name, read(name)]));
}

// One sensor as {values, shape, dtype}: encoded from the environment's space, or an array that is encoded already.
function readSensor(sensor, value, what, before) {
  const { shape, dtype, space = { kind: "box", shape, dtype } } = sensor;
  const isEncoded = isShape(shapeOf(value), shape);
  let values;
  if (isEncoded && !isNative(space, value)) values = numbers(value, dtype, what);
  else {
    values = wrapped(sensor, space, encode(space, value, what), before);
  }
  return { values, shape, dtype };
}

// An encoded observation as the wrappers of the run's environment change it.
function wrapped(sensor, space, values, before) {
  let [height, width, channels = 1] = isImage(space) ? space.shape : [1, 1, values.length];
  if (sensor.channels_first) {
    [channels, height, width] = space.shape;
    const pixels = height * width;
    values = values.map((_, i) => values[(i % channels) * pixels + Math.floor(i / channels)]);
  }
  if (sensor.grayscale && channels === 3) {
    channels = 1;
    const brightness = (_, i) =>
      Math.floor((19595 * values[3 * i] + 38470 * values[3 * i + 1] + 7471 * values[3 * i + 2] + 32768) / 65536);
    values = Array.from({ length: height * width }, brightness);
  }
  if (sensor.resize) {
    values = resized(values, [height, width, channels], sensor.resize);
    [height, width] = sensor.resize;
  }
  const frames = sensor.frame_stack ?? 1;
  if (frames === 1) return values;
  return Array.from({ length: values.length * frames }, (_, i) => {
    const [pixel, k] = [Math.floor(i / (channels * frames)), i % (channels * frames)];
    const isOld = before && k < channels * (frames - 1);
    return isOld ? before.values[i + channels] : values[pixel * channels + (k % channels)];
  });
}

// An image in another size: the means of covered pixels, rounded once, or along the width and then along the height.
function resized(values, [height, width, channels], [rows, columns]) {
  const at = (row, column, k) => values[(row * width + column) * channels + k];
  const image = (h, w, pixel) =>
    Array.from({ length: h * w * channels }, (_, i) => {
      const place = Math.floor(i / channels);
      return pixel(Math.floor(place / w), place % w, i % channels);
    });
  if (height === rows && width === columns) return values;
  if (height % rows === 0 && width % columns === 0) {
    const [high, wide] = [height / rows, width / columns];
    const weight = Math.floor(Math.fround(2 ** 32 / (256 * high * wide)));
    return image(rows, columns, (row, column, k) => {
      let total = Math.floor((high * wide) / 2);
      for (let i = 0; i < high; i++) for (let j = 0; j < wide; j++) total += at(row * high + i, column * wide + j, k);
      return Math.floor((total * weight) / 2 ** 24);
    });
  }
  const mean = (parts) => {
    const weight = Math.floor(0.5 + 2 ** 22 / parts.length);
    return Math.min(Math.floor((sum(parts) * weight + 2 ** 21) / 2 ** 22), 255);
  };
  const [acrossRows, acrossColumns] = [covered(height, rows), covered(width, columns)];
  const by = image(height, columns, (row, column, k) => mean(acrossColumns[column].map((j) => at(row, j, k))));
  return image(rows, columns, (row, column, k) =>
    mean(acrossRows[row].map((i) => by[(i * columns + column) * channels + k])),
  );
}

// The old pixels whose centers each new one covers, along one axis.
function covered(before, after) {
  const scale = before / after;
  const width = Math.max(scale, 1);
  return Array.from({ length: after }, (_, i) => {
    const center = (i + 0.5) * scale;
    const [first, stop] = [center - width / 2 + 0.5, center + width / 2 + 0.5].map(Math.trunc);
    const offset = (old) => (old - center + 0.5) * (1 / width);
    const isCovered = (old) => old >= first && old < stop && offset(old) > -0.5 && offset(old) <= 0.5;
    return Array.from({ length: before }, (_, old) => old).filter(isCovered);
  });
}

const isImage = (space) => space.kind === "box" && space.dtype === "uint8" && [2, 3].includes(space.shape.length);

const sizeOf = (space) =>
  ({
    discrete: () => space.n,
    multi_discrete: () => sum(space.nvec),
    tuple: () => sum(space.parts.map(sizeOf)),
  })[space.kind]?.() ?? product(space.shape);

function encode(space, value, what) {
  if (space.kind === "tuple") {
    if (!isNative(space, value)) throw new PolicyError(`${what}: expected an array of ${space.parts.length} parts`);
    return space.parts.flatMap((part, i) => encode(part, value[i], `${what}, part ${i}`));
  }
  if (!isNative(space, value) && !(space.kind === "box" && sizeOf(space) === 1 && isShape(shapeOf(value), [1]))) {
    const expected = space.kind === "discrete" ? "an integer" : `shape [${space.shape}]`;
    throw new PolicyError(`${what} has shape [${shapeOf(value) ?? "of several lengths"}], expected ${expected}`);
  }
  const flat = numbers(value, isImage(space) ? "uint8" : "float32", what);
  if (space.kind === "box") return flat;
  if (space.kind === "multi_binary") {
    const wrong = flat.find((x) => x !== 0 && x !== 1);
    if (wrong !== undefined) throw new PolicyError(`${what}: the number ${wrong}, expected 0 or 1`);
    return flat;
  }
  const [sizes, starts] = space.kind === "discrete" ? [[space.n], [space.start]] : [space.nvec, space.start];
  return sizes.flatMap((n, k) => {
    const index = flat[k] - starts[k];
    if (!Number.isInteger(index) || index < 0 || index >= n) {
      const at = space.kind === "discrete" ? "" : ` at index ${k}`;
      throw new PolicyError(`${what}: the value ${flat[k]}${at}, expected integers ${starts[k]} to ${starts[k] + n - 1}`);
    }
    return Array.from({ length: n }, (_, i) => Number(i === index));
  });
}

function isNative(space, value) {
  if (space.kind === "tuple") return isArray(value) && value.length === space.parts.length;
  const shape = shapeOf(value);
  return space.kind === "discrete" ? isShape(shape, []) || isShape(shape, [1]) : isShape(shape, space.shape);
}

const isShape = (found, shape) => found?.length === shape.length && found.every((n, i) => n === shape[i]);

// Shape of nested arrays; undefined for arrays of several lengths.
function shapeOf(value) {
  if (!isArray(value)) return [];
  const inner = Array.from(value, shapeOf);
  if (inner.some((shape) => shape === undefined || !isShape(shape, inner[0]))) return undefined;
  return [value.length, ...(inner[0] ?? [])];
}

function numbers(value, dtype, what) {
  const flat = isArray(value) ? Array.from(value).flat(Infinity).flatMap((part) => (isArray(part) ? [...part] : part)) : [value];
  return flat.map((entry, i) => {
    const number = typeof entry === "boolean" ? Number(entry) : entry;
    const isValid = dtype === "uint8" ? Number.isInteger(number) && number >= 0 && number <= 255 : Number.isFinite(number);
    const expected = dtype === "uint8" ? "integers from 0 to 255" : "finite numbers";
    if (typeof number !== "number" || !isValid)
      throw new PolicyError(`${what} holds ${JSON.stringify(entry)} at position ${i}, expected ${expected}`);
    return Math.fround(number);
  });
}

// ------------------------------------------------------------------------------------------------------------- actions

// An action in the environment's form: numbers, nested arrays for arrays and tuples, objects for dicts.
function nativeAction(space, parts) {
  if (space.kind === "tuple") return space.parts.map((part) => nativeAction(part, parts));
  if (space.kind === "dict")
    return Object.fromEntries(space.keys.map((key, i) => [key, nativeAction(space.parts[i], parts)]));
  if (space.kind === "discrete") return parts.discrete.shift() + space.start;
  const isBox = space.kind === "box";
  const values = (isBox ? parts.continuous : parts.discrete).splice(0, isBox ? space.low.length : product(space.shape));
  if (space.kind === "multi_discrete") return shaped(values.map((value, i) => value + space.start[i]), space.shape);
  if (!isBox) return shaped(values, space.shape);
  const isInteger = /^(u?int|bool)/.test(space.dtype);
  return shaped(
    values.map((value, i) => {
      const [low, high, share] = [space.low[i], space.high[i], (clip(value, 1) + 1) / 2];
      if (isInteger) return Math.min(low + Math.floor(share * (high - low + 1)), high);
      return Math.min(Math.max(low + share * (high - low), low), high);
    }),
    space.shape,
  );
}

function shaped(values, shape) {
  if (!shape.length) return values[0];
  if (shape.length === 1) return values;
  const size = values.length / shape[0];
  return Array.from({ length: shape[0] }, (_, i) => shaped(values.slice(i * size, (i + 1) * size), shape.slice(1)));
}

// --------------------------------------------------------------------------------------------------------------- files

async function read(place, name) {
  const path = `${place}/${name}`;
  if (typeof process !== "undefined" && process.versions?.node && !/^https?:/.test(path)) {
    const { readFile } = await import("node:fs/promises");
    return new Uint8Array(await readFile(path.startsWith("file:") ? new URL(path) : path));
  }
  const response = await fetch(path);
  if (!response.ok) throw new PolicyError(`${path}: status ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

// Tensors of a safetensors file: an eight-byte length, a JSON header, and numbers.
function tensors(content) {
  const length = Number(new DataView(content.buffer, content.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(content.subarray(8, 8 + length)));
  const found = {};
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const [begin, end] = entry.data_offsets;
    const data = new Float32Array(content.slice(8 + length + begin, 8 + length + end).buffer);
    found[name] = Object.assign(data, { shape: entry.shape });
  }
  return found;
}
