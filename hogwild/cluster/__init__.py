"""Many machines: the nodes of a job, the work of each, and the ledger over all of them."""
