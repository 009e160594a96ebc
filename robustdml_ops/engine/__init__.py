"""The sweep over chunks of classes, and the epilogues that serve it on each device."""
