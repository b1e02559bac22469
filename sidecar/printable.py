"""Text of any origin, made safe for a terminal, a log line or a page."""


def printable(text: str) -> str:
    """Return the text with characters that are not printable written as Python escapes."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
