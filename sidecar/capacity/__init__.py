"""Estimate what a group will need, with a model in closed form. Pure."""
