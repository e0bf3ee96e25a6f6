"""The server under test: starting one, resetting its cache, sampling and examining it."""
