"""The dashboard: pages rendered on the server, for people who operate a group.

`security` controls access, `pages` and the files by subject show and change, `queries` reads data.

The answers come from the same functions as on the command line; nothing is computed twice. A page loads nothing from
other hosts.
"""
