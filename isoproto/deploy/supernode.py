"""Flower's SuperNode as a process that ends when its connection ends.

In Flower 1.42, a thread of the SuperNode serves the processes of the node. When the SuperNode gives up its connection,
for example because a new certificate is refused, that thread keeps the process alive. Then neither Docker nor systemd
sees that it must be started again. Here the process ends with the connection.
"""

import os
import sys
import traceback

from flwr.supernode.cli import flower_supernode


def main() -> None:
    """Run the SuperNode with this process's arguments. When it returns, exit with status 1, even if threads run."""
    try:
        flower_supernode()  # SystemExit passes: the SuperNode was stopped, or refused its arguments
    except Exception:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
