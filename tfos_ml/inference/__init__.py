"""SavedModels over the columns of a DataFrame."""
