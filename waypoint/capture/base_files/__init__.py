"""Files of the base that captured processes have open or mapped: kept with the image, and brought back if need be."""
