"""Child processes as the supervisor sees them, and the pure roster that says which of them should live."""
