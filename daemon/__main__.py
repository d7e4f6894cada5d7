"""`python -m mooncask.daemon`."""

import sys

from mooncask.daemon.command import main

if __name__ == "__main__":
    sys.exit(main())
