"""Seeded faults for a user's own job: `hogwild chaos JOB.yaml --kills N --seed S`. Picture: docs/architecture.md."""
