"""The parts of `make bench-send`: single sends beside a consumer that keeps up."""
