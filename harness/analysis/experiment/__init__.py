"""What the runs of an experiment say together: contrasts, prices, curves, counts of each mode."""
