"""Programs that use offsets_pipeline as a library. The package does not install them: run them from this project."""
