"""Video files: reading, writing, and what people show over time."""
