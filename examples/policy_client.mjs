// Acts through `coterie serve exported --port 8765` with a team of particle/simple_spread.
//
//     node policy_client.mjs ws://127.0.0.1:8765/act
//
// Node.js 22 and browsers have WebSocket. Node.js 18 and 20 send every step as an HTTP request instead.

const url = new URL(process.argv[2] ?? "ws://127.0.0.1:8765/act");
const team = typeof WebSocket === "undefined" ? overHttp(url) : await overWebSocket(url);
const obs = Object.fromEntries([0, 1, 2].map((i) => [`agent_${i}`, Array(18).fill(0.1 * i)]));
await team.reset();
console.log(JSON.stringify(await team.act(obs)));
team.close();

async function overWebSocket(url) {
  const socket = new WebSocket(url);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new Error(`cannot connect to ${url}`));
  });
  const ask = (request) =>
    new Promise((resolve, reject) => {
      socket.onmessage = ({ data }) => {
        const answer = JSON.parse(data);
        answer.error ? reject(new Error(answer.error)) : resolve(answer);
      };
      socket.onclose = () => reject(new Error("the server ended the connection"));
      socket.send(JSON.stringify(request));
    });
  return {
    reset: () => ask({ reset: true }),
    act: async (obs) => (await ask({ obs })).actions,
    close: () => socket.close(),
  };
}

function overHttp(url) {
  const address = String(url).replace(/^ws/, "http");
  let hiddenState; // of recurrent policies: an input and an output of every step
  return {
    reset: () => (hiddenState = undefined),
    act: async (obs) => {
      const body = JSON.stringify({ obs, hidden_state: hiddenState });
      const headers = { "Content-Type": "application/json" };
      const answer = await (await fetch(address, { method: "POST", headers, body })).json();
      if (answer.error) throw new Error(answer.error);
      hiddenState = answer.hidden_state;
      return answer.actions;
    },
    close: () => {},
  };
}
