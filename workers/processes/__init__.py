"""Child processes as the supervisor sees them, and the pure roster that decides which of them should live."""
