"""Flower's SuperNode as a process that ends when its work does.

Flower 1.42 serves a node's processes from a thread of its own. When the connection is given up, as after a certificate
that is refused while the node runs, that thread keeps the process alive, and neither Docker nor systemd starts it anew.
"""

import os
import sys
import traceback

from flwr.supernode.cli import flower_supernode


def main() -> None:
    """Run the SuperNode with this process's arguments; when it returns, whatever its threads do, the status is 1."""
    try:
        flower_supernode()  # it ends by SystemExit where it was told to
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
