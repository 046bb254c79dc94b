"""What `penstock up` runs in one process: services of one shape, the maintenance among them."""
