"""What leaves for others: tables and references for papers, and cards of models."""
