"""Where blocks are among nodes: see `directory.py`."""
