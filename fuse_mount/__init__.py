"""The file-system view: a client of the daemon that shows namespaces as folders and blocks as files."""
