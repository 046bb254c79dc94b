"""What the dashboard costs: the parts of `make bench-dashboard`."""
