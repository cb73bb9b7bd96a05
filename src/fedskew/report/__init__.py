"""From records to tables and pages."""
