"""What was used and what it costs: metering, bills, and when caches pay."""
