"""The drawing kit of the built-in environments and of adapters without a renderer of their own.

`colors` holds the palette, `text` rendered text and the header with title and score, `shapes` a pen in world units and
the sprites of the grid worlds, `scene` discs and the camera, `labels` the placement of names and speech bubbles, and
`cells` tables of labeled cells.
"""
