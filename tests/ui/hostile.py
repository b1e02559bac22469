"""Texts that would do something in a page that does not escape them; each sets `window.hurt` where it can."""

from __future__ import annotations

ATTACKS = (
    "<script>window.hurt=1</script>",
    "<img src=x onerror=window.hurt=1>",
    "\"><svg onload='window.hurt=1'>",
    "'><iframe srcdoc='<script>parent.hurt=1</script>'>",
    "</title></style></textarea><script>window.hurt=1</script>",
    "</svg><script>window.hurt=1</script>",
    '" onfocus=window.hurt=1 autofocus tabindex=0 x="',
    "<a href='javascript:window.hurt=1' autofocus>x</a>",
    "<div hx-get=/part/group hx-trigger=load hx-on::load='window.hurt=1'>",
    "<style>*{display:none!important}</style>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example/'>",
    "{{ 7*191 }}{% for x in (1,) %}{{ x.__class__ }}{% endfor %}",
    "%3Cscript%3Ewindow.hurt=1%3C/script%3E",
    "\x1b[31m\x9b2J\x00\u202eevil\u2066",
)

TOGETHER = tuple("".join(ATTACKS[at : at + 3]) for at in range(0, len(ATTACKS), 3))
"""The same in fewer texts."""

LONG = "x" * 249
"""A name without a place to break it, as long as Kafka lets a topic's be."""
