"""The decisions of the Conductor as pure objects: no I/O, no clock, no randomness that is not passed in."""
