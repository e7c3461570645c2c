"""Live labeling on this machine: video files, cameras and network streams."""
