"""Make and check a federation's keys, certificates and signatures."""
