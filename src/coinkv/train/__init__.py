"""Fine-tuning: a model that learns to answer behind composed KV, in the way it is asked later."""
