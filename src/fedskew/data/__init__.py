"""Everything before training: data sets, partitions, label noise, shards, image transforms."""
