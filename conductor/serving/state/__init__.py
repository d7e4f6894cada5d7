"""What the Conductor must not forget: records that are changed one at a time, and a log in which nothing stands twice."""
