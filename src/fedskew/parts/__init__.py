"""The parts that methods are made of, and the protocol that each of them follows."""
