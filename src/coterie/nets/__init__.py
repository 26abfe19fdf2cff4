"""Networks: layers with an optional set axis, bodies, memory, and the team's role tensors in, [.., N, H] out."""
