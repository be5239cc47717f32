"""How fast and how large blocks, networks and operators are, side by side in one run."""
