"""The papers' tables and figures: what each needs, the runs behind it, and our numbers beside the printed ones."""
