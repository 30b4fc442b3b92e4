"""Data that is read or parsed before training, by workers that started early; and predictions by several processes."""
