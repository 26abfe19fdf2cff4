"""The player that is copied next to an export.

`coterie_player.py` is these modules in one file. They import the standard library, NumPy and, for ONNX, onnxruntime.
"""
