// State of a run that is training: steps, age of the policy, and returns by team.
import { brief, make } from "./cards.js";

const at = (id) => document.getElementById(id);
const count = (x) => Math.round(x).toLocaleString("en-US");

/** Shows the state of the run that is watched. */
export function showRun(run) {
  at("run").hidden = false;
  at("run").dataset.state = run.state;
  at("run-state").textContent = run.text;
  at("run-progress").value = Math.min(1, run.steps / run.total);
  at("run-steps").textContent = `step ${count(run.steps)} of ${count(run.total)}`;
  at("run-policy").textContent =
    run.policy_steps === null ? "no policy yet" : `policy of step ${count(run.policy_steps)}, ${run.policy_age} old`;
  const watched = `last ${run.watched.episodes} episode${run.watched.episodes === 1 ? "" : "s"} here`;
  const teams = Object.keys(run.watched.returns).length ? Object.keys(run.watched.returns) : teamsOf(run);
  const head = make("tr", "", "", ...["team return", "training", "evaluation", watched].map((text) => make("th", "", text)));
  const rows = teams.map((team) => make("tr", "", "", make("th", "", team),
    ...[of(run.training, team), of(run.evaluation, team), run.watched.returns[team]].map((x) => make("td", "", brief(x)))));
  at("run-returns").replaceChildren(make("thead", "", "", head), make("tbody", "", "", ...rows));
}

const teamsOf = (run) => [...new Set([...Object.keys(run.training), ...Object.keys(run.evaluation)])];

/** Value of a team; a run with one team logs it without the name. */
const of = (values, team) => values[team] ?? values[""];
