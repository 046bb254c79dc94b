"""What each call costs: the parts of `make bench-growth`."""
