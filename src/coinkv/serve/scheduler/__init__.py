"""The scheduler: many requests share one model, pass by pass."""
