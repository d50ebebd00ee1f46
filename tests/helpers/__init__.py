"""What tests share: models, training loops, comparisons."""
