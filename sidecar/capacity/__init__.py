"""What a group will need: a model in closed form. Pure."""
