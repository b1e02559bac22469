"""The dashboard: pages rendered on the server, for people who operate a group.

`security` controls access, `pages` shows, `forms` changes, `queries` and `summary` read data, `charts` and
`journey_chart` draw (pure).

The answers come from the same functions as on the command line; nothing is computed twice. A page loads nothing from
other hosts.
"""
