"""Programs that run in one environment each and measure on command. They share ``driver`` and ``processes``, which need no package."""
