"""Serves one mount; see `process.py`."""

import sys

from mooncask.fuse_mount.process import main

sys.exit(main(sys.argv[1:]))
