"""The JSON pages under /-/v1/ and the dashboard. What they say is worked out in `daemon/insight/`."""
