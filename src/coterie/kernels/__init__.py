"""Fused CPU kernels in C++: building and loading them, and the operators that PyTorch knows them by."""
