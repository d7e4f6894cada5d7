"""`python -m mooncask.daemon`."""

import sys

from mooncask.daemon.main import main

if __name__ == "__main__":
    sys.exit(main())
