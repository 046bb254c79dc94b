"""What calls cost as the database grows: each case is measured at two sizes, and the ratio is bounded."""
