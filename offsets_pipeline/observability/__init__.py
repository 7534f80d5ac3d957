"""What the pipeline tells its operators: warnings, metrics, figures."""
