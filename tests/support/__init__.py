"""What tests of several rooms share: atlases and texts made by hand, slow references, a browser, disks that fail."""
