"""A federation for people who look after machines: its folders, keys and processes, behind one command."""
