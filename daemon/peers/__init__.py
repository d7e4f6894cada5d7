"""What a node does with other nodes: pulls what it lacks, serves what it has, and tells of both."""
