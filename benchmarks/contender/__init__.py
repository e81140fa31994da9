"""Inference engines in processes of their own, all driven alike: token ids in, the times of prefill and decode out."""
