"""For the tests of those who use Penstock."""
