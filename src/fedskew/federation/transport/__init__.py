"""Carry a federation's messages with Flower."""
