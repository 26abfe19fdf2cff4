"""One experiment with several seeds in one figure.

python examples/seeds.py [STEPS]

The command line does the same in several processes:
coterie train -m seed=0,1,2 --jobs 2 && coterie plot runs --out seeds.png
"""

import sys

import coterie
from coterie.runs.plots import plot

steps = int(float(sys.argv[1])) if len(sys.argv) > 1 else 500_000
runs = []
for seed in range(3):
    settings = {"algo": "mappo", "env": "particle/simple_spread", "steps": steps, "eval.every": steps // 10}
    runs.append(coterie.train(seed=seed, out=f"runs/seeds/{seed}", **settings))

for file in plot([run.run for run in runs], "seeds.png"):
    print(file)
