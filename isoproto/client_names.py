"""The order of clients' names."""


def client_order(name: str) -> tuple[bool, int, str]:
    """Return the sort key of a client's name: first partition ids by value, then names of nodes by letter.

    Example:
        >>> sorted(["10", "ward-3", "9"], key=client_order)
        ['9', '10', 'ward-3']
    """
    return (False, len(name), name) if name.isdecimal() else (True, 0, name)
