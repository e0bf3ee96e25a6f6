"""What a policy says of a run or experiment: pass, fail or cannot tell."""
