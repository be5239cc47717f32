"""The paper's tables: as data, as runs that fill them, and as what came out."""
