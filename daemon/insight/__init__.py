"""What the daemon can tell about itself and its blocks: why something missed, what is hot, what flows where."""
