"""Pure bookkeeping: how an epoch is cut into work items, and who may lease which. No torch, clock, process or lock."""
