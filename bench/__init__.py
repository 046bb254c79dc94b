"""The benchmarks of Penstock: each is one command, with what it is compared against in the same run."""
