"""The BlockPool explorer: a small true model of vLLM's block pool, and a page that replays it."""
