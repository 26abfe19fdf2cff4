"""Networks: layers with parameter sets, encoders, recurrent layers, team networks, critics and mixers."""
