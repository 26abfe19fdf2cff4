"""Unity environments built with ML-Agents: a helper process with an interpreter of its own speaks to each."""
