"""Tests of the services that `penstock up` runs."""
