"""Unity environments built with ML-Agents. A helper process with its own interpreter communicates with each."""
