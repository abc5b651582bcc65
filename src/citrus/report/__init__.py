"""Pages and pictures from the files of a run. `picture` needs the extra `report` (matplotlib); pages need nothing."""
