"""Everything before the first round: data, partition, labels, network and method from a configuration."""
