"""What every package uses: settings, time, text, periodic work."""
