"""Acts through `coterie serve exported --port 8765` with a team of particle/simple_spread.

    python policy_client.py ws://127.0.0.1:8765/act

Needs `pip install websockets`, and neither Coterie nor NumPy.
"""

import json
import sys

from websockets.sync.client import connect


def ask(socket, request):
    """Returns the answer to a request."""
    socket.send(json.dumps(request))
    answer = json.loads(socket.recv())
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


def main(url):
    """Prints the actions of one step."""
    with connect(url) as socket:
        ask(socket, {"reset": True})
        obs = {f"agent_{i}": [0.1 * i] * 18 for i in range(3)}
        print(json.dumps(ask(socket, {"obs": obs})["actions"]))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8765/act")
