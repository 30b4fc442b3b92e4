"""The job file: YAML with line numbers, schema, rules, messages, reference."""
