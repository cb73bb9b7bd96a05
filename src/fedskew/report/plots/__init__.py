"""Pictures of runs, partitions, and detections."""
