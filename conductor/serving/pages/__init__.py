"""What the Conductor shows of itself under /-/: metrics, JSON pages, the dashboard."""
