"""The dashboard: pages rendered here, for people who look after a group. Others find the answers.

`security` says who may come in, `pages` shows, `actions` changes, `looks` and `summary` ask, `drawing` draws (pure).
The same functions as the command line's are called; nothing is computed twice. Nothing is fetched from elsewhere.
"""
