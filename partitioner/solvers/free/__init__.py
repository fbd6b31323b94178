"""Problems whose stages may lie anywhere."""
