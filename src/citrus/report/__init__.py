"""Pictures and pages from results. Needs the extra `report` (matplotlib)."""
