"""One update: autograd, flat and sparse rules, mixed precision, schedules, evaluation."""
