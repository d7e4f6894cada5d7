"""An event-driven simulator that drives the objects of `conductor/scheduling` over traces. See docs/SIMULATOR.md."""
