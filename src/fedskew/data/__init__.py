"""Everything before training: sources, partitions, shards, augmentation."""
