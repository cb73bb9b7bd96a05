"""From a configuration to a run and back: data, method, engine, rounds, record."""
