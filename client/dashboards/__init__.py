"""What the dashboards of the daemon and of the Conductor have in common: files, and how files are served."""
