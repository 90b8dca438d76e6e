"""Figures as text for people. None means unknown, and is shown as a dash, not as zero."""

NOTHING = "–"


def percent(fraction: float | None) -> str:
    """Return a fraction as per cent.

    Example:
        >>> percent(0.78349), percent(None)
        ('78.3%', '–')
    """
    return NOTHING if fraction is None else f"{100 * fraction:.1f}%"


def points(fraction: float | None) -> str:
    """Return a difference or spread of accuracies in percentage points.

    Example:
        >>> points(0.0512)
        '5.1 points'
    """
    return NOTHING if fraction is None else f"{100 * fraction:.1f} points"


def gain(fraction: float | None) -> str:
    """Return a difference of accuracies in percentage points with its sign.

    Example:
        >>> gain(0.0491), gain(-0.006), gain(-0.0001), gain(None)
        ('+4.9', '−0.6', '0.0', '–')
    """
    if fraction is None:
        return NOTHING
    text = f"{100 * fraction:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text


def cosine(value: float | None) -> str:
    """Return a cosine with two decimals.

    Example:
        >>> cosine(-0.6432), cosine(0.9), cosine(None)
        ('−0.64', '0.90', '–')
    """
    return NOTHING if value is None else f"{value:.2f}".replace("-", "−")


def size(count: float | None) -> str:
    """Return a number of bytes in decimal units (1 kB = 1000 B), with three digits.

    Example:
        >>> size(840), size(5400), size(420_000), size(999_999)
        ('840 B', '5.40 kB', '420 kB', '1.00 MB')
    """
    if count is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} B" if unit == "B" else f"{count:#.3g} {unit}".replace(". ", " ")
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float | None) -> str:
    """Return a length of time with about three digits.

    Example:
        >>> duration(0.0312), duration(3.44), duration(75), duration(7380)
        ('31 ms', '3.4 s', '1 min 15 s', '2 h 03 min')
    """
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def plain(value: object, limit: int = 300) -> str:
    r"""Return text from a client so that it can be shown: on one line, without invisible characters, not too long.

    Control characters would reach the terminal or break an SVG file, and direction marks would reorder the text around
    them. Markup stays as it is: the caller escapes it, because only the caller knows the output format.

    Example:
        >>> plain("ward\x1b[2J  3\n"), plain("abcdef", limit=4)
        ('ward�[2J 3', 'abc…')
    """
    text = " ".join(str(value).split())
    text = "".join(character if character.isprintable() else "�" for character in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts.

    Example:
        >>> counted(1, "client"), counted(3, "client")
        ('1 client', '3 clients')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
