"""Sending a plan over the wire, from this process or from several."""
