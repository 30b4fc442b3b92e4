"""A user's own job under seeded faults: `hogwild chaos JOB.yaml --kills N --seed S`. Picture: docs/architecture.md."""
