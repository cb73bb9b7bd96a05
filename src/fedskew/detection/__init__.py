"""Find clients with noisy labels from the losses per class that they report. Pure numpy."""
