"""The order of clients' names."""


def client_order(name: str) -> tuple[bool, int, str]:
    """Sort key of client names: partition ids by value, then node names by letter.

    Example:
        >>> sorted(["10", "ward-3", "9"], key=client_order)
        ['9', '10', 'ward-3']
    """
    return (False, len(name), name) if name.isdecimal() else (True, 0, name)
