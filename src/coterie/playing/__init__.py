"""Looking at policies, and playing with them: by hand, recorded, in a browser."""
