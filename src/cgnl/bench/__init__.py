"""Time, memory and error of blocks, networks and operators, side by side in one run."""
