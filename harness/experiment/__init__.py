"""Experiments: several runs on one replica, planned, carried out, and kept in one folder."""
