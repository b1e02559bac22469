"""The checks of `reconsume doctor`: what may keep a group from working. `all_checks` has the table of them."""
