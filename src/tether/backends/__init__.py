"""Where computation happens. Only this folder knows about devices, precision and (later) several processes."""
