// Acts through `coterie serve exported --port 8765` with a team of particle/simple_spread.
//
//     node policy_client.mjs ws://127.0.0.1:8765/act
//
// Node 22 and browsers have WebSocket; Node 20 needs --experimental-websocket.

const socket = new WebSocket(process.argv[2] ?? "ws://127.0.0.1:8765/act");
const answers = [];
let waiting = null;
socket.onmessage = ({ data }) => (waiting ? waiting(JSON.parse(data)) : answers.push(JSON.parse(data)));

async function ask(request) {
  socket.send(JSON.stringify(request));
  const answer = answers.shift() ?? (await new Promise((resolve) => (waiting = resolve)));
  waiting = null;
  if (answer.error) throw new Error(answer.error);
  return answer;
}

await new Promise((resolve, reject) => {
  socket.onopen = resolve;
  socket.onerror = () => reject(new Error("cannot connect"));
});
await ask({ reset: true });
const obs = Object.fromEntries([0, 1, 2].map((i) => [`agent_${i}`, Array(18).fill(0.1 * i)]));
console.log(JSON.stringify((await ask({ obs })).actions));
socket.close();
