"""Open-loop load: when to send (arrivals), what to send (prompts), and sending it (dispatch)."""
